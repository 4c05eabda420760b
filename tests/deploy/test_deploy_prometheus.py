from __future__ import annotations

from typing import Any

from helpers.deployment import DEPLOY, check, document, tool

FOLDER = DEPLOY / "prometheus"


def rules() -> list[dict[str, Any]]:
    [group] = document(FOLDER / "rules.yml")["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    said = check(tool("promtool"), "check", "config", FOLDER / "prometheus.yml")
    assert "SUCCESS" in said


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    assert "SUCCESS" in check(tool("promtool"), "test", "rules", FOLDER / "rules_test.yml")


def test_no_alert_is_without_a_test_in_which_it_fires() -> None:
    tests = document(FOLDER / "rules_test.yml")["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}


def test_each_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["alert"].startswith("Moonfold")
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_each_alert_is_explained_on_the_page() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []
