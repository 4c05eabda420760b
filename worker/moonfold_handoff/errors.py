"""The errors that end a handoff, each with the failure code it is published under."""

from __future__ import annotations

from datetime import datetime

from moonfold_schemas.results import FailureCode, PassedOver


class HandoffError(Exception):
    """A handoff cannot be made. The message is for people and holds no text of the conversation.

    The other arguments are the fields of `handoff.failed`.
    """

    code = FailureCode.INTERNAL
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        needed: int | None = None,
        available: int | None = None,
        resets_at: datetime | None = None,
        passed_over: tuple[PassedOver, ...] = (),
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available
        self.resets_at = resets_at
        self.passed_over = passed_over


class ServerAwayError(HandoffError):
    """The server did not answer, or refused, for too long."""

    retryable = True


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


class NoTargetError(HandoffError):
    """Nobody is named with whom the thread could go on."""

    code = FailureCode.NO_TARGET_AVAILABLE


class NoTargetYetError(NoTargetError):
    """Everybody with whom the thread could go on is used up, or it went on too often."""

    retryable = True


class SupersededError(HandoffError):
    """A newer request of the session for the thread takes this one's place."""

    code = FailureCode.SUPERSEDED
