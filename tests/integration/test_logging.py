from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from moonfold_handoff import logs

SECRET = "private words"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail() -> None:
    raise ValueError(SECRET)


def write(out: io.StringIO, **options: str) -> str:
    logs.configure(stream=out, **options)
    structlog.get_logger().info("it_happened", size=7)
    return out.getvalue()


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize(
    ("out", "format_", "is_json"),
    [
        (io.StringIO, "auto", True),
        (io.StringIO, "json", True),
        (io.StringIO, "console", False),
        (Terminal, "auto", False),
        (Terminal, "json", True),
    ],
)
def test_lines_are_json_unless_a_person_reads_them(
    out: type[io.StringIO], format_: str, is_json: bool
) -> None:
    text = write(out(), format_=format_)
    assert text.startswith("{") is is_json
    assert "it_happened" in text
    if is_json:
        line = json.loads(text)
        assert line.pop("timestamp").endswith("Z")
        assert line == {"event": "it_happened", "size": 7, "level": "info"}


@pytest.mark.usefixtures("restored_logging")
def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(format_="json")
    structlog.get_logger().info("it_happened")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "it_happened" in captured.err


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize(
    ("level", "written"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)]
)
def test_lines_below_the_level_are_left_out(level: str, written: int) -> None:
    out = io.StringIO()
    logs.configure(format_="json", level=level, stream=out)
    logger = structlog.get_logger()
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    assert len(out.getvalue().splitlines()) == written


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("format_", ["json", "console"])
def test_an_exception_is_logged_by_its_type_and_places_only(format_: str) -> None:
    out = io.StringIO()
    logs.configure(format_=format_, stream=out)
    logger = structlog.get_logger()
    try:
        fail()
    except ValueError as error:
        logger.exception("a")
        logger.error("b", exc_info=error)  # noqa: TRY400
        logger.error("c", exc_info=(type(error), error, error.__traceback__))  # noqa: TRY400
        logging.getLogger("library").exception("d")
        logging.getLogger("library").error("e", exc_info=error)  # noqa: TRY400
    text = out.getvalue()
    assert SECRET not in text
    assert text.count("ValueError") == 5
    assert text.count("fail:") == 5
    assert len(text.splitlines()) == 5


@pytest.mark.usefixtures("restored_logging")
def test_no_exception_is_no_error() -> None:
    out = io.StringIO()
    logs.configure(format_="json", stream=out)
    structlog.get_logger().error("a", exc_info=True)
    assert "at" not in json.loads(out.getvalue())


@pytest.mark.usefixtures("restored_logging")
def test_what_libraries_warn_of_is_a_line_and_the_rest_is_silence() -> None:
    out = io.StringIO()
    logs.configure(format_="json", level="debug", stream=out)
    for name in ("redis", "asyncio"):
        logging.getLogger(name).info("chatter")
    logging.getLogger("arq.worker").error("arguments: %s", SECRET)
    logging.getLogger("redis").warning("slow %s", "server")
    [line] = [json.loads(text) for text in out.getvalue().splitlines()]
    assert (line["event"], line["level"]) == ("slow server", "warning")


@pytest.mark.usefixtures("restored_logging")
def test_lines_carry_what_was_bound() -> None:
    out = io.StringIO()
    logs.configure(format_="json", stream=out)
    with structlog.contextvars.bound_contextvars(request_id="r", attempt=2):
        structlog.get_logger().info("a")
        logging.getLogger("library").warning("b")
    for text in out.getvalue().splitlines():
        line = json.loads(text)
        assert (line["request_id"], line["attempt"]) == ("r", 2)
