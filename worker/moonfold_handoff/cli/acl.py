"""`moonfold acl`."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import urlsplit

import click

from moonfold_handoff.ops import acl as users

PASSWORD_BYTES = 32
FILE = "users.acl"
SUFFIX = ".url"

# Other users read the files, in containers of their own; the directory keeps everybody else out.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o644


@click.command()
@click.option(
    "--producer",
    "producers",
    metavar="NAME",
    multiple=True,
    help="A producer, whose ids all begin with its name and a dot. May be repeated.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the file, and for each user its URL with a password, into this directory.",
)
@click.option("--url", help="With --into: the server, without user, such as redis://valkey:6379/0.")
def acl(*, producers: tuple[str, ...], into: Path | None, url: str | None) -> None:
    """Print the users of the server for its ACL file, each with the least it needs.

    These are admin, worker, reader, monitor and every producer. Without --into they have no passwords, so
    nobody can log in yet.

    With --into DIRECTORY there are users.acl and NAME.url, whose content is for MOONFOLD_REDIS_URL_FILE.
    Called again it keeps the passwords and adds users; whose NAME.url was removed gets a new password, or,
    as a producer that is not named again, is gone.
    """
    names = dict.fromkeys((*users.ROLES, *producers))
    try:
        for name in producers:
            users.check_producer(name)
        if into is None:
            click.echo(users.file(dict.fromkeys(names, ())), nl=False)
            return
        if url is None or not _is_bare(url):
            raise click.BadParameter("give the server's URL without a user", param_hint="--url")
        kept = _kept(into)
        passwords = {
            name: kept.get(name) or secrets.token_urlsafe(PASSWORD_BYTES) for name in names | kept
        }
        content = users.file({name: [word] for name, word in passwords.items()})
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--producer") from error
    into.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    into.chmod(DIRECTORY_MODE)
    scheme, _, rest = url.partition("://")
    for name, word in passwords.items():
        _write(into / f"{name}{SUFFIX}", f"{scheme}://{name}:{word}@{rest}\n")
    _write(into / FILE, content)
    click.echo(f"{into / FILE}: {', '.join(passwords)}")


def _is_bare(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.scheme) and "://" in url and "@" not in parts.netloc


def _kept(directory: Path) -> dict[str, str]:
    """Return the passwords of the users that have a URL in `directory`."""
    found = {}
    for file in sorted(directory.glob(f"*{SUFFIX}")):
        password = urlsplit(file.read_text(encoding="utf-8").strip()).password
        if password:
            found[file.name.removesuffix(SUFFIX)] = password
    return found


def _write(path: Path, content: str) -> None:
    """Write in place: a file that is mounted into a container must stay the same one."""
    path.write_text(content, encoding="utf-8")
    path.chmod(FILE_MODE)
