from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.__main__ import main
from evaluation.measure import AHEAD, FIRST_CUT, cut_points, measure_session, moments
from evaluation.plot import PlotError, check_plot
from evaluation.sessions import OWN, Session, Travelling, read_session
from evaluation.systems import (
    BASELINES,
    BrokenError,
    load_policy,
    policy_system,
)
from helpers.building import assistant, command, log, user

from moonfold_handoff.context.portable import body
from moonfold_handoff.context.selection import Selection, select
from moonfold_handoff.context.state import ThreadState
from moonfold_schemas.items import Item

RECORDING = OWN[0] / "recorded-2.1-slugger-limit.jsonl"


def session(*items: Item) -> Session:
    history = log(*items)
    refs = history.state.window
    travelling = zip(refs, items, strict=True)
    return Session(
        "a session",
        "a-thread",
        tuple(history.entries),
        tuple(Travelling(ref.position, item, ref, body(item)) for ref, item in travelling),
    )


def about(names: list[str]) -> Session:
    """Return a session that mentions `names` in its first ten items, and again in the last twelve."""
    return session(
        user(f"please look at {names[0]}"),
        *(assistant(f"it is {name}") for name in names[1:]),
        *(command("true", "nothing to see") for _ in range(FIRST_CUT - len(names))),
        *(assistant(f"again {names[n % len(names)]}, and new_{n}") for n in range(AHEAD)),
    )


@pytest.mark.parametrize("items", [21, 22, 23, 40, 62, 1_000])
def test_cuts_are_evenly_spaced_with_room_before_and_ahead(items: int) -> None:
    cuts = cut_points(items)

    assert len(cuts) == min(40, max(0, items - AHEAD - FIRST_CUT + 1))
    assert cuts == sorted(set(cuts))
    if cuts:
        assert (cuts[0], cuts[-1]) == (FIRST_CUT, items - AHEAD)


def test_needed_is_what_comes_again_and_was_known() -> None:
    (moment,) = moments(about(["one_name", "two.py"]), [FIRST_CUT])

    assert moment.needed == {"one_name", "two.py"}
    assert len(moment.items) == moment.state.items == FIRST_CUT


def test_the_state_at_a_cut_is_that_of_the_log_before_it() -> None:
    recorded = read_session(RECORDING, "slugger")
    cuts = cut_points(len(recorded.items))

    for cut, moment in zip(cuts, moments(recorded, cuts), strict=True):
        (whole,) = moments(recorded, [cut])
        assert moment.state == whole.state
        assert moment.state.items == len(moment.items) == cut


def test_recall_is_the_share_that_is_carried() -> None:
    systems = [*BASELINES, policy_system("ours", select)]
    result = measure_session(
        about(["one_name", "two.py", "threeNames", "E1234"]),
        systems,
        [1_024, 2_000, 64_000],
        [10],
        lambda: None,
    )

    assert result is not None
    assert result.needed == 4
    recalls = {key: figures.recall for key, figures in result.measured.items()}
    assert recalls["whole, 360", 1_024] == 0
    assert recalls["whole, 360", 2_000] == 0.5  # the latest request and answer, of four
    assert recalls["ours", 64_000] == recalls["own attribution", 64_000] == 1


def test_what_is_missing_is_traced_to_its_newest_mention() -> None:
    result = measure_session(
        about(["one_name", "two.py"]), BASELINES, [1_024], [FIRST_CUT], lambda: None
    )

    assert result is not None
    figures = result.measured["whole, 360", 1_024]
    assert figures.misses == {"user, left out": 0.5, "assistant, left out": 0.5}
    assert figures.ages == {"7–12 items ago": 1.0}


def test_a_session_that_needs_nothing_is_not_counted() -> None:
    items = [assistant(f"only_once_{n}") for n in range(FIRST_CUT + AHEAD)]

    assert measure_session(session(*items), BASELINES, [4_000], [FIRST_CUT], lambda: None) is None


def test_a_policy_that_costs_more_than_it_may_is_broken() -> None:
    def spendthrift(state: ThreadState, thread_id: str, allowance: int) -> Selection:
        return select(state, thread_id, allowance * 10)

    (moment,) = moments(read_session(RECORDING, "slugger"), [12])

    with pytest.raises(BrokenError, match="costs"):
        policy_system("spendthrift", spendthrift).carry(moment, 1_024)


def test_a_policy_is_named_by_module_and_function() -> None:
    assert load_policy("moonfold_handoff.context.selection:select") is select
    for wrong in ("nowhere_at_all:f", "moonfold_handoff.context.selection:absent"):
        with pytest.raises(ValueError, match="Cannot load"):
            load_policy(wrong)
    with pytest.raises(TypeError, match="module:function"):
        load_policy("moonfold_handoff")


def test_the_program_measures_a_recording_and_writes_what_it_was_asked_for(tmp_path: Path) -> None:
    json_file, plot = tmp_path / "result.json", tmp_path / "result.svg"
    arguments = [str(RECORDING), "--caps", "2000,16_000", "--cuts", "3"]

    run = CliRunner().invoke(main, [*arguments, "--json", str(json_file), "--plot", str(plot)])

    assert run.exit_code == 0, run.output
    document = json.loads(json_file.read_text())
    assert [system["name"] for system in document["systems"]] == [
        "whole, 360",
        "own attribution",
        "ours",
    ]
    assert document["sessions"][0]["cuts"] == 3
    assert plot.read_text().startswith("<svg")


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(PlotError, match=r"\.svg"):
        check_plot(Path("picture.pdf"))
