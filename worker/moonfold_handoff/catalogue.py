"""The catalogue of context windows, read from `windows.toml` and from the operator's own file."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from moonfold_handoff.context.capacity import Catalogue, CatalogueEntry


class CatalogueError(ValueError):
    """The operator's file cannot be used; the message says why in one sentence."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    provider: str
    models: Annotated[list[str], Meta(min_length=1)]
    tokens: Annotated[int, Meta(gt=0, le=2**53 - 1)]
    source: str = ""
    date: Any = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    window: list[_Entry] = []


def load_catalogue(operator_file: Path | None = None) -> Catalogue:
    """Return the built-in catalogue, preceded by the operator's entries.

    Raises:
        CatalogueError: the operator's file is missing or not of the form of `windows.toml`.
    """
    builtin = _read((resources.files("moonfold_handoff") / "windows.toml").read_bytes())
    if operator_file is None:
        return Catalogue(builtin)
    try:
        return Catalogue(builtin, operator=_read(operator_file.read_bytes()))
    except OSError as error:
        raise CatalogueError(f"{operator_file} cannot be read: {error.strerror}.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise CatalogueError(f"{operator_file} is no list of context windows: {error}.") from None


def _read(raw: bytes) -> list[CatalogueEntry]:
    document = msgspec.convert(tomllib.loads(raw.decode()), _File)
    return [
        CatalogueEntry(entry.provider, tuple(entry.models), entry.tokens, entry.source)
        for entry in document.window
    ]
