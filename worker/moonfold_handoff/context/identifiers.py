"""What a text speaks of: paths, names, symbols, error codes; and marks that stand for them.

A mark has four characters, so that those of hundreds of items fit in a state. One in sixteen million
pairs of identifiers shares a mark, which costs a little judgement and never correctness.
"""

from __future__ import annotations

import re
from zlib import crc32

MARK_CHARACTERS = 4  # 24 bits

LONGEST = 160  # characters of a name; what is longer is data

_TOKEN = re.compile(r"[A-Za-z0-9_@~./\\-]{3,}")
_SHAPE = re.compile(
    r"""
      [A-Za-z0-9] [._/\\-]+ [A-Za-z]      # src/parser.py, os.path, snake_case, kebab-case
    | [A-Za-z] [._/\\-]+ [0-9]            # step-2
    | [A-Za-z] [0-9] | [0-9] [A-Za-z]     # E1234, a1b2c3d
    | [a-z] [A-Z]                         # camelCase, TypeName
    | ^ [A-Z]{4,} $                       # ENOENT
    | ^ [._/~]+ [A-Za-z]                  # .gitignore, /tmp, _private
    """,
    re.VERBOSE,
)

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def identifiers(text: str) -> list[str]:
    """Return the identifiers that `text` mentions, each once, in order.

    A path is followed by its last part, so that a file is recognised under another root.
    """
    found: dict[str, None] = {}
    for token in dict.fromkeys(_TOKEN.findall(text)):
        if len(token) > LONGEST or _SHAPE.search(token) is None:
            continue
        name = token.strip("./\\-")
        found[name] = None
        cut = max(name.rfind("/"), name.rfind("\\")) + 1
        if cut and len(name) - cut > 2:
            found[name[cut:]] = None
    return list(found)


def marks(text: str) -> list[str]:
    """Return the marks of the identifiers in `text`, each once, in order."""
    return list(dict.fromkeys(map(mark_of, identifiers(text))))


def mark_of(name: str) -> str:
    """Return the four characters that stand for an identifier, or for any other text."""
    code = crc32(name.encode("utf-8", "replace"))
    return _PAIRS[code >> 12 & 0xFFF] + _PAIRS[code & 0xFFF]
