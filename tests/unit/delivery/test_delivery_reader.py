from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from moonfold_handoff.cli.going_on import run
from moonfold_handoff.delivery import start
from moonfold_handoff.delivery.programs import PROGRAMS
from moonfold_handoff.delivery.reader import COMMAND, NOTHING, Offer, offer
from moonfold_handoff.delivery.start import Start, prepare_start
from moonfold_handoff.reading import configuration
from moonfold_handoff.reading.configuration import INSTALL, OPENCODE, TOKEN
from moonfold_schemas import Target
from moonfold_schemas.results import (
    Budget,
    Coverage,
    Delivery,
    Figure,
    HandoffReady,
    LimitingInput,
    Origin,
    ReaderAccess,
)

FIGURE = Figure(value=0, origin=Origin.RULE)
FIGURES: dict[str, Any] = dict.fromkeys(
    ("cap", "ceiling", "window", "existing", "request", "attachments", "reserve"), FIGURE
)
ACCESS = ReaderAccess(token="mfr_secret", expires_at=datetime(2030, 1, 1, tzinfo=UTC), through=1)
URL = "https://reader.example/mcp"


def handoff(provider: str, access: ReaderAccess | None = ACCESS, **changes: Any) -> HandoffReady:
    fields: dict[str, Any] = {"delivery": Delivery.TEXT, "text": "the history", **changes}
    return HandoffReady(
        request_id="r",
        session_id="s",
        target=Target(provider=provider),
        coverage=Coverage(through=1, selected_items=1, omitted_items=0),
        budget=Budget(**FIGURES, allowance=0, limited_by=LimitingInput.CAP),
        reader=access,
        **fields,
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the person an empty home, and every agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GEMINI_CLI_HOME", OPENCODE):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in PROGRAMS.values():
        path = folder / program.name
        path.write_text(f"#!{sys.executable}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return tmp_path


def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)


@pytest.mark.parametrize("provider", PROGRAMS)
def test_without_a_token_nothing_is_offered(provider: str) -> None:
    assert offer(handoff(provider, None)) == NOTHING


def test_an_agent_that_is_not_known_is_offered_nothing() -> None:
    assert offer(handoff("another")) == NOTHING


async def test_the_reader_comes_before_everything_else_that_an_agent_is_given() -> None:
    for provider in ("codex", "claude-code"):
        offered = offer(handoff(provider))
        assert offered.environment == {TOKEN: ACCESS.token}
        prepared = await prepare_start(handoff(provider), "Now this", cwd=None)
        count = 1 + len(offered.arguments)
        assert prepared.arguments[1:count] == offered.arguments
        assert prepared.arguments[-2:] == ("--", "the history\n\nNow this")
        assert prepared.reader == offered
        assert ACCESS.token not in " ".join(prepared.arguments)


async def test_codex_has_the_reader_where_it_gets_messages_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def inject(*_: Any, **__: Any) -> str:
        return "thread-1"

    monkeypatch.setattr(start, "inject", inject)
    ready = handoff("codex", delivery=Delivery.ITEMS)
    prepared = await prepare_start(ready, "Now this", cwd=None)
    _, option, _, *rest = prepared.arguments
    assert (option, rest) == ("-c", ["resume", "thread-1", "--", "Now this"])
    assert prepared.reader.environment == {TOKEN: ACCESS.token}


def test_a_persons_own_servers_of_opencode_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"model": "m", "mcp": {"own": {"type": "local", "command": ["own"]}}}
    monkeypatch.setenv(OPENCODE, json.dumps(own))
    content = json.loads(offer(handoff("opencode")).environment[OPENCODE])
    added = content["mcp"].pop("moonfold")
    assert (content, added["command"]) == (own, list(COMMAND))


@pytest.mark.parametrize("own", ["{ // no JSON\n}", "[]", "{"])
def test_a_configuration_of_opencode_that_is_no_json_is_left_as_it_is(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPENCODE, own)
    offered = offer(handoff("opencode"))
    assert OPENCODE not in offered.environment
    assert OPENCODE in str(offered.trouble)


def test_gemini_cli_is_configured_by_the_person_once(home: Path) -> None:
    offered = offer(handoff("gemini-cli"))
    assert offered.environment == {TOKEN: ACCESS.token}
    told = str(offered.trouble).partition(": ")[2]
    add = ["gemini", "mcp", "add", "--scope=user", f"--env={TOKEN}=${TOKEN}", "moonfold"]
    assert shlex.split(told) == [*add, *COMMAND]
    (home / ".gemini").mkdir()
    settings = {"mcpServers": {"moonfold": {"command": "x"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    assert offer(handoff("gemini-cli")) == Offer((), {TOKEN: ACCESS.token})


def test_without_the_extra_only_a_reader_with_a_url_is_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_the_extra(monkeypatch)
    assert offer(handoff("codex")) == Offer(trouble=INSTALL)
    offered = offer(handoff("codex", replace(ACCESS, url=URL)))
    assert URL in offered.arguments[1]
    assert offered.trouble is None


async def test_the_agent_gets_what_is_added_to_its_environment(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import os; print(os.environ['{TOKEN}'], os.environ['HOME'])"
    added: Mapping[str, str] = {TOKEN: "the token"}
    started = Start(
        (sys.executable, "-c", script), None, None, reader=Offer((), added, "Not installed.")
    )
    assert await run(started) == 0
    printed = capfd.readouterr()
    assert printed.out == f"the token {home}\n"
    assert printed.err == "Warning: what was left out cannot be read. Not installed.\n"
