"""The operator's failover policy: where threads go on when their provider is used up, read from a file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, field

from moonfold_schemas.base import Bound, Id, ModelName, Options
from moonfold_schemas.requests import NativeAbilities, Target

MAX_CANDIDATES = 32  # as in a request


class PolicyError(ValueError):
    """The operator's file cannot be used; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target and the providers whose threads may go there; None: those of any provider."""

    target: Target
    serves: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Where threads go on, the first choice first, and how often.

    Attributes:
        candidates: for requests that name none.
        failovers_per_hour: most failovers of a thread within an hour; None: the setting says.
    """

    candidates: tuple[Candidate, ...] = ()
    failovers_per_hour: int | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets, whatever provider they serve."""
        return tuple(candidate.target for candidate in self.candidates)

    def candidates_for(self, provider: str | None) -> tuple[Target, ...]:
        """Return where a thread of `provider` may go on; None where nobody knows its provider."""
        return tuple(
            candidate.target
            for candidate in self.candidates
            if candidate.serves is None or provider in candidate.serves
        )


NO_POLICY = Policy()
"""A policy without candidates: requests have to name theirs."""


class _Native(NativeAbilities, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`NativeAbilities`, in which a misspelt name is an error."""


class _Candidate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One `[[candidate]]`: the fields of a `Target`, but for the conversation, and whom it serves."""

    provider: Id
    instance: Id | None = None
    model: ModelName | None = None
    options: Options = field(default_factory=dict)
    capacity: Bound | None = None
    version: str | None = None
    native: _Native = field(default_factory=_Native)
    serves: Annotated[frozenset[Id], Meta(min_length=1)] | None = field(name="from", default=None)

    def read(self) -> Candidate:
        abilities = NativeAbilities(
            inject_items=self.native.inject_items,
            resume=self.native.resume,
            fork=self.native.fork,
        )
        target = Target(
            provider=self.provider,
            instance=self.instance,
            model=self.model,
            options=self.options,
            capacity=self.capacity,
            version=self.version,
            native=abilities,
        )
        return Candidate(target, self.serves)


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    candidate: Annotated[list[_Candidate], Meta(max_length=MAX_CANDIDATES)] = []
    failovers_per_hour: Annotated[int, Meta(gt=0)] | None = None


def load_policy(file: Path | None) -> Policy:
    """Return the policy in a TOML file; one without candidates where there is no file.

    Raises:
        PolicyError: the file is missing or is no failover policy.
    """
    if file is None:
        return NO_POLICY
    try:
        read = msgspec.convert(tomllib.loads(file.read_bytes().decode()), _File)
    except OSError as error:
        raise PolicyError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise PolicyError(f"{file} is no failover policy: {error}.") from None
    return Policy(tuple(one.read() for one in read.candidate), read.failovers_per_hour)
