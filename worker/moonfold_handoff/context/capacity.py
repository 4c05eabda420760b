"""What is known of context windows: which options touch them, and the catalogue of models (R16-R19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b

import msgspec

from moonfold_schemas.base import Option
from moonfold_schemas.results import Origin

WINDOW_OPTIONS: dict[str, frozenset[str]] = {
    "codex": frozenset({"model_context_window", "model_auto_compact_token_limit"}),
    "claude-code": frozenset({"betas", "autocompact_percentage"}),
    "gemini-cli": frozenset({"compression_threshold"}),
    "opencode": frozenset({"context_limit", "input_limit", "compaction_reserved"}),
}
"""Options that touch the context window or when it is compacted, by provider.

An option that is not listed, such as a reasoning effort, changes neither.
"""

ANY_PROVIDER = frozenset({"context_window", "context_length", "max_context_tokens"})
"""Options that touch the window whoever the provider is."""

SIZE_OPTIONS = (
    "model_context_window",
    "context_limit",
    "context_window",
    "context_length",
    "max_context_tokens",
)
"""Options whose value is the window itself, in tokens."""

BETAS = "betas"
LARGE_BETA = "context-1m"
"""What Claude's `betas` option contains where the window of a million tokens is asked for.

Its other parts do not touch the window.
"""

LARGE_BETA_TOKENS = 1_000_000

MAX_TOKENS = 2**53 - 1  # the largest figure that the wire carries
MAX_MODEL = 128  # bytes of a model's name as JSON; of a longer one a digest is kept
MAX_VALUE = 64  # bytes of an option's value or a selection's key as JSON; likewise

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Window:
    """A model's context window in tokens and where that is known from."""

    tokens: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Selection:
    """A model and options of a provider, for which one window holds."""

    provider: str
    model: str | None
    options: Mapping[str, Option]

    @property
    def key(self) -> str:
        """What tells it from selections whose windows may differ."""
        return selection_key(self.provider, self.model, self.options)


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Models of a provider that have the same window.

    Attributes:
        provider: as in a target.
        models: patterns of model names, those of a shell.
        tokens: the window.
        source: where the figure is from, for the people who keep the catalogue.
    """

    provider: str
    models: tuple[str, ...]
    tokens: int
    source: str = ""


class Catalogue:
    """Context windows of models; the operator's entries come before the built-in ones."""

    def __init__(
        self, builtin: Iterable[CatalogueEntry] = (), operator: Iterable[CatalogueEntry] = ()
    ) -> None:
        self._entries = [(entry, Origin.OPERATOR) for entry in operator]
        self._entries += [(entry, Origin.CATALOGUE) for entry in builtin]

    def window(
        self, provider: str, model: str | None, options: Mapping[str, Option]
    ) -> Window | None:
        """Return the window of a selection, or None if nothing is known of it."""
        chosen = _chosen_window(provider, options)
        if chosen is not None:
            return Window(chosen, Origin.OPTION)
        name = model or ""
        for entry, origin in self._entries:
            if entry.provider == provider and any(fnmatchcase(name, p) for p in entry.models):
                return Window(entry.tokens, origin)
        return None


NOTHING_KNOWN = Catalogue()
"""A catalogue without entries."""


def window_options(provider: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Return those of `options` that touch the context window, none of them long."""
    touching = WINDOW_OPTIONS.get(provider, frozenset()) | ANY_PROVIDER
    found: dict[str, Option] = {}
    for name, value in options.items():
        if name not in touching:
            continue
        if name != BETAS:
            found[name] = _bounded(value)
        elif LARGE_BETA in str(value):
            found[name] = LARGE_BETA
    return found


def selection_key(provider: str, model: str | None, options: Mapping[str, Option]) -> str:
    """Return what tells selections apart whose windows may differ."""
    touching = window_options(provider, options)
    key = _encode([provider, model_name(model), touching]).decode()
    return _shortened(key, MAX_VALUE)


def model_name(model: str | None) -> str | None:
    """Return a model's name as it is kept: itself unless it is long."""
    return None if model is None else _shortened(model, MAX_MODEL)


def positive(tokens: int | None) -> int | None:
    """Return a figure of a provider, or None where zero or less means unknown."""
    return tokens if tokens is not None and tokens > 0 else None


def _chosen_window(provider: str, options: Mapping[str, Option]) -> int | None:
    """Return the window that the options themselves ask for."""
    touching = window_options(provider, options)
    for name in SIZE_OPTIONS:
        value = touching.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return LARGE_BETA_TOKENS if BETAS in touching else None


def _bounded(value: Option) -> Option:
    """Return an option's value, a long text or number as its digest."""
    if isinstance(value, int) and abs(value) > MAX_TOKENS:
        return _shortened(hex(value), MAX_VALUE)
    return _shortened(value, MAX_VALUE) if isinstance(value, str) else value


def _shortened(text: str, limit: int) -> str:
    """Return `text`, or a digest of it where its JSON is longer than `limit`: what is kept is bounded."""
    if len(_encode(text)) <= limit:
        return text
    return blake2b(text.encode(), digest_size=16).hexdigest()
