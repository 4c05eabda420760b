"""The dashboard, the alerts and the scaling only ask for what a running worker exports."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from conftest import RunningWorker
from helpers.asking import conversation, document, job, put, ready, switch
from helpers.deployment import DEPLOY
from helpers.deployment import document as read
from helpers.servers import RedisServer, free_port
from helpers.waiting import until
from prometheus_client.parser import text_string_to_metric_families

from moonfold_handoff.client import HandoffClient
from moonfold_handoff.context.availability import Instance, Notice
from moonfold_handoff.settings import Settings
from moonfold_handoff.store import keys, providers
from moonfold_schemas import utc_now
from moonfold_schemas.events import LimitKind, TurnEnded, TurnStatus

OF_PROMETHEUS = {"up": {"job"}, "ALERTS": {"alertname", "alertstate"}}
OF_THE_TARGET = {"job", "instance", "namespace"}
ENDINGS = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}
VARIABLES = {"$__rate_interval": "5m", "$job": ".+"}

Selected = tuple[str, frozenset[str]]
"""A series that is asked for, and the labels that it is expected to have."""


def of_the_dashboard() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "moonfold.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert match is not None
            yield f"sum by ({match[2]}) ({match[1]})"


def of_the_alerts() -> Iterator[str]:
    for group in read(DEPLOY / "prometheus" / "rules.yml")["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def of_the_scaling() -> Iterator[str]:
    for trigger in read(DEPLOY / "kubernetes" / "scaledobject.yaml")["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"
        yield trigger["metadata"]["query"]


SOURCES = {
    "dashboard": of_the_dashboard,
    "alerts": of_the_alerts,
    "scaling": of_the_scaling,
}


def selected(expression: str) -> Iterator[Selected]:
    """Yield what an expression asks for."""
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    yield from _selected(promql.parse(expression), frozenset())


def _selected(node: Any, labels: frozenset[str]) -> Iterator[Selected]:
    kind = type(node).__name__
    if kind == "VectorSelector":
        names = {matcher.name for matcher in node.matchers.matchers}
        yield node.name, labels | names
        return
    if kind == "AggregateExpr" and node.modifier is not None:
        labels |= set(node.modifier.labels)
    for part in ("expr", "lhs", "rhs", "vector_selector"):
        if hasattr(node, part):
            yield from _selected(getattr(node, part), labels)
    for argument in getattr(node, "args", ()):
        yield from _selected(argument, labels)


@pytest.fixture
async def exported(server: RedisServer) -> dict[str, set[str]]:
    """Return the series that a worker exports which had something to do, each with its labels."""
    settings = Settings(redis_url=server.url, metrics_address=f"127.0.0.1:{free_port()}")
    running = RunningWorker(settings)
    await running.start()
    async with HandoffClient("session", settings) as client:
        last = await client.append("thread", 0, conversation())
        await client.append("thread", last, [TurnEnded(turn_id="t", status=TurnStatus.COMPLETED)])
        await ready(client, switch())
        redis = client.services.redis
        await put(redis, "unreadable", job(document(through="nowhere")))
        notice = Notice(LimitKind.QUOTA, utc_now(), utc_now() + timedelta(hours=1))
        await providers.limited(redis, Instance("codex"), notice, now=utc_now())
        await until(lambda: redis.xlen(keys.REJECTED))
    page: dict[str, set[str]] = {}

    async def is_complete() -> bool:
        page.clear()
        page.update(_series(await asyncio.to_thread(_scrape, settings.metrics_address)))
        return "moonfold_fold_delay_seconds_bucket" in page and "moonfold_workers" in page

    await until(is_complete)
    await running.stop()
    return page


def _scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as reply:
        text: str = reply.read().decode()
    return text


def _series(page: str) -> dict[str, set[str]]:
    """Return the series of a page; one whose labels are not known yet has none."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for ending in ENDINGS[family.type]:
            found[family.name + ending] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("source", SOURCES)
async def test_only_series_and_labels_are_asked_for_that_a_worker_exports(
    source: str, exported: dict[str, set[str]]
) -> None:
    asked = {one for expression in SOURCES[source]() for one in selected(expression)}
    assert asked
    for name, labels in sorted(asked, key=str):
        known = OF_PROMETHEUS.get(name)
        if known is None:
            assert name in exported, name
            # Prometheus keeps a target's own labels and renames those of the series that are called alike.
            known = {f"exported_{n}" if n in OF_THE_TARGET else n for n in exported[name]}
            if name == "moonfold_job_retries_total":
                known = {"function"}  # none was made
        assert labels <= known | OF_THE_TARGET, name


async def test_what_a_worker_exports_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    asked = {name for expression in of_the_dashboard() for name, _ in selected(expression)}
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exported}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    ours = {name for name in families if name.startswith("moonfold_")}
    assert ours - shown == {
        "moonfold_handoff_carried_items_total",
        "moonfold_handoff_omitted_items_total",
    }


def test_the_dashboard_is_one_that_grafana_can_show_anywhere() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "moonfold.json").read_text(encoding="utf-8"))
    assert dashboard["uid"] == "moonfold"
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "job"}
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(t["datasource"] == panel["datasource"] for t in panel["targets"])
        assert all('job=~"$job"' in target["expr"] for target in panel["targets"])


def test_no_panel_lies_on_another() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "moonfold.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        rows = range(place["y"], place["y"] + place["h"])
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(row, column) for row in rows for column in columns}
        assert columns.stop <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
