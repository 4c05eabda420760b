"""Logging: one line an event, JSON unless on a terminal, never a word of a conversation.

Lines carry what the running job bound (request, thread, job id, attempt). An exception is logged by its
type and the places it passed, without its message: messages may quote what could not be read.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

FRAMES = 8  # places of an exception that are logged, the innermost


def configure(*, format_: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog and route the libraries' own records through it.

    Args:
        format_: `json`, `console`, or `auto` for console on a terminal.
        level: least severe line that is written.
        stream: where to; standard error by default.
    """
    out = sys.stderr if stream is None else stream
    console = format_ == "console" or (format_ == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_exception,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # arq logs arguments and exception messages; what it has to say, the worker says itself.
    logging.getLogger("arq").setLevel(logging.CRITICAL)


def name_exception(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Replace an exception by its type and the places it passed (a structlog processor)."""
    raised = line.pop("exc_info", None)
    if raised is True:
        raised = sys.exc_info()[1]
    elif isinstance(raised, tuple):
        raised = raised[1]
    if isinstance(raised, BaseException):
        frames = traceback.extract_tb(raised.__traceback__)[-FRAMES:]
        line["error"] = type(raised).__name__
        line["at"] = [f"{frame.name}:{frame.lineno}" for frame in frames]
    return line
