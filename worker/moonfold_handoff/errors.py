"""The errors that end a handoff, each with the failure code it is published under."""

from __future__ import annotations

from moonfold_schemas.results import FailureCode


class HandoffError(Exception):
    """A handoff cannot be made. The message is for people and holds no text of the conversation."""

    code = FailureCode.INTERNAL
    retryable = False

    def __init__(
        self, message: str, *, needed: int | None = None, available: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class ReferencesDoNotFitError(HandoffError):
    """Not even the one-line pointer to the history fits (R12)."""

    code = FailureCode.REFERENCES_DO_NOT_FIT


class HistoryIncompleteError(HandoffError):
    """The log does not reach as far as the request says."""

    code = FailureCode.HISTORY_INCOMPLETE
    retryable = True


class HistoryCorruptError(HandoffError):
    """An entry of the log is not an event, or the log has a hole."""

    code = FailureCode.HISTORY_CORRUPT


class ThreadNotFoundError(HandoffError):
    """There is no log under that thread id, or it has expired."""

    code = FailureCode.THREAD_NOT_FOUND


class InvalidRequestError(HandoffError):
    """The request cannot be read, or asks for something that does not exist."""

    code = FailureCode.INVALID_REQUEST
