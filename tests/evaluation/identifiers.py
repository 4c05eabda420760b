"""What a text speaks of: the evaluation's own reading, which shares nothing with what it judges.

An identifier is one of:

* a path: parts joined by `/` (`src/parser.py`, `/tmp`, `~/notes`, `@types/node`), or by `\\` after a drive,
  a leading `\\\\`, `.\\` or `..\\`, or before a file name with an extension; `./` and `../` in front go,
* a dotted name or a file name: `os.path`, `std::io::Error`, `parser.py`, `.gitignore`,
* a symbol of three characters or more: `snake_case`, `camelCase`, `TypeName`, `kebab-case`,
* an error code, an id or a number with letters: `E1234`, `ENOENT`, `a1b2c3d`, `v2`-like ones from three
  characters on.

A path or dotted name also counts as its last part, where that is an identifier by itself, so that the
same file is recognised under another root. Not identifiers: plain words, capitalised or not, numbers,
versions and dates, quantities such as `0.5s`, colour codes of a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

LONGEST = 200  # characters; what is longer is data
SHORTEST = 3

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CLOSING_TAG = re.compile(r"</")
_TOKEN = re.compile(
    r"(?:(?<![A-Za-z0-9])[A-Za-z]:(?=\\))?[A-Za-z0-9_.~@/\\-]+(?:::[A-Za-z0-9_.]+)*"
)
_WINDOWS_PATH = re.compile(
    r"(?:[A-Za-z]:\\|\\\\|\.{1,2}\\).*[A-Za-z].*|(?:[\w.-]{2,}\\)+[\w-]{2,}\.[A-Za-z]\w{0,7}",
    re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbfv0sdwDSWB])?")
_RELATIVE = re.compile(r"^(?:\.{1,2}/)+")
_VERSION = re.compile(r"\d+(?:[.,]\d+)*[A-Za-z%]{0,3}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:T\d{2})?")
_CHARACTER_CLASS = re.compile(r"(?:\w-\w)+")
# What comes before a name that begins with a dot; after anything else the name is a member.
_OPENING = " \t\n\"'`(,=:"
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]{2,}")
_LETTER = re.compile(r"[A-Za-z]")
_DIGIT = re.compile(r"\d")
_PROSE = "e.g i.e a.m p.m and/or n/a w/o i/o he/she his/her yes/no true/false on/off input/output"
_NO_NAMES = frozenset(_PROSE.split())
_ERRORS = (
    "EACCES EADDRINUSE EADDRNOTAVAIL EAGAIN EALREADY EBADF EBUSY ECANCELED ECHILD ECONNABORTED "
    "ECONNREFUSED ECONNRESET EDEADLK EDOM EEXIST EFAULT EFBIG EHOSTUNREACH EINPROGRESS EINTR EINVAL EIO "
    "EISCONN EISDIR ELOOP EMFILE EMLINK EMSGSIZE ENAMETOOLONG ENETDOWN ENETUNREACH ENFILE ENOBUFS ENODEV "
    "ENOENT ENOEXEC ENOLCK ENOMEM ENOSPC ENOSYS ENOTCONN ENOTDIR ENOTEMPTY ENOTFOUND ENOTSOCK ENOTSUP "
    "ENOTTY ENXIO EOVERFLOW EPERM EPIPE EPROTO ERANGE ERESOLVE EROFS ESPIPE ESRCH ETIMEDOUT ETXTBSY "
    "EWOULDBLOCK EXDEV"
)
_ERROR_NAMES = frozenset(_ERRORS.split())


@cache
def identifiers(text: str) -> frozenset[str]:
    """Return the identifiers that `text` mentions; the answer for a text is kept."""
    clean = _CLOSING_TAG.sub("< ", _TERMINAL.sub(" ", text))
    return frozenset(
        identifier
        for match in _TOKEN.finditer(clean)
        for identifier in _in_token(
            match[0],
            before=clean[match.start() - 1 : match.start()],
            after=clean[match.end() : match.end() + 1],
        )
    )


def _in_token(token: str, before: str = "", after: str = "") -> Iterator[str]:
    if len(token) > LONGEST:
        return
    if "\\" in token:
        yield from _around_backslashes(token.rstrip("\\./-"))
        return
    token = _without_edges(token, member=bool(before.strip(_OPENING)) or after == "(")
    if len(token) < SHORTEST or token.lower() in _NO_NAMES or not _LETTER.search(token):
        return
    if "--" in token:
        for part in re.split("--+", token):
            yield from _in_token(part)
    elif "/" in token:
        yield from _path(token)
    elif "." in token or "::" in token:
        if not _VERSION.fullmatch(token):
            yield token
            yield from _in_token(re.split(r"\.|::", token)[-1])
    elif _is_symbol(token):
        yield token


def _around_backslashes(token: str) -> Iterator[str]:
    if _WINDOWS_PATH.fullmatch(token):
        yield token
        yield from _in_token(token.rsplit("\\", 1)[1])
        return
    for part in _ESCAPE.split(token):
        yield from _in_token(part)


def _without_edges(token: str, *, member: bool) -> str:
    """Return `token` without the punctuation and relative beginnings around it."""
    token = _RELATIVE.sub("", token.lstrip("-").rstrip(".-/@~"))
    if token.startswith("//"):
        token = token.lstrip("/")
    if token.startswith("@") and "/" not in token:
        token = token.lstrip("@")
    if token.startswith(".") and (member or token.startswith("..")):
        token = token.lstrip(".")
    return token


def _path(token: str) -> Iterator[str]:
    parts = [part for part in token.split("/") if part]
    if not any(len(part) >= SHORTEST and _LETTER.search(part) for part in parts):
        return
    if len(parts) > 1 or token[0] == "/":
        yield token
    yield from _in_token(parts[-1])


def _is_symbol(token: str) -> bool:
    if _DATE.fullmatch(token) or _CHARACTER_CLASS.fullmatch(token):
        return False
    joined = "_" in token or "-" in token
    return (
        joined
        or _DIGIT.search(token) is not None
        or _CAMEL.search(token) is not None
        or token in _ERROR_NAMES
    )
