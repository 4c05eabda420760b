"""How the thread reader is served: over stdio to the agent that started it, over HTTP to agents elsewhere.

Over HTTP each request carries its own token and nothing is kept between two of them. A request without a
token that opens something now is turned away before it is read.
"""

from __future__ import annotations

import signal
import socket
import sys
from urllib.parse import urlsplit

import structlog
import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from moonfold_handoff.reading.access import AccessDeniedError, authorize
from moonfold_handoff.reading.configuration import SERVER
from moonfold_handoff.reading.server import Context, create_server
from moonfold_handoff.services import Services
from moonfold_handoff.store.connection import TRANSIENT, RedisError

PATH = "/mcp"
MAX_REQUEST_BYTES = 65_536  # a call is some hundred bytes
STOP_SECONDS = 5  # for calls that are being answered when the server ends

_SCHEME = "bearer "
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

logger = structlog.get_logger()


async def serve_stdio(services: Services, token: str) -> None:
    """Serve the agent at the other end of standard input and output, until it hangs up.

    Standard output is the protocol's alone: what anything else prints goes to standard error.
    """
    server = create_server(services, lambda _: token)
    if not sys.stdin.isatty():
        # Ctrl-C at the terminal reaches the agent's whole group, and is meant for the agent.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def http_server(
    services: Services, listening: socket.socket, *, public_url: str | None = None
) -> uvicorn.Server:
    """Return a server for streamable HTTP; `serve(sockets=[listening])` runs it.

    Args:
        services: the servers that hold tokens and threads.
        listening: where requests arrive.
        public_url: where agents reach it, if that is not where it listens.
    """
    server = create_server(services, _token_of_call)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_REQUEST_BYTES,
        transport_security=_security(listening, public_url),
    )
    config = uvicorn.Config(
        Guard(app, services),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def local_url(listening: socket.socket) -> str:
    """Return the URL under which agents on this machine reach the server."""
    host, port = listening.getsockname()[:2]
    return f"http://{_in_url(host)}:{port}{PATH}"


class Guard:
    """Turns away requests without a token that opens something, before anything of them is read.

    The answer is the same for a token that is missing, forged, revoked or expired. Where the server that
    knows is away, the request passes, and the tool's own check says so.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not await self._admits(bearer(Headers(scope=scope))):
            refusal = PlainTextResponse(
                "A token that opens a thread is needed.\n",
                status_code=401,
                headers={"WWW-Authenticate": f'Bearer realm="{SERVER}", error="invalid_token"'},
            )
            await refusal(scope, receive, send)
        elif scope["method"] != "POST":
            # Nothing is kept between requests, so there is no stream to open and no session to end.
            answer = PlainTextResponse("Use POST.\n", status_code=405, headers={"Allow": "POST"})
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _admits(self, token: str) -> bool:
        try:
            await authorize(self._services.redis, token)
        except AccessDeniedError:
            return False
        except (*TRANSIENT, RedisError) as error:
            logger.warning("reader_waits_for_server", error=type(error).__name__)
        return True


def bearer(headers: Headers) -> str:
    """Return the token of a request; "" where it has none, which opens nothing."""
    value = headers.get("authorization", "")
    return value[len(_SCHEME) :].strip() if value[: len(_SCHEME)].lower() == _SCHEME else ""


def _token_of_call(context: Context) -> str:
    request = context.request
    return bearer(request.headers) if isinstance(request, Request) else ""


def _security(listening: socket.socket, public_url: str | None) -> TransportSecuritySettings:
    """Return the names that requests may be sent to, so that no web page can reach it by another."""
    host = listening.getsockname()[0]
    hosts = [f"{name}:*" for name in (*_LOOPBACK, _in_url(host))]
    origins = [f"http://{name}" for name in hosts]
    if public_url is not None:
        public = urlsplit(public_url)
        hosts.append(public.netloc)
        origins.append(f"{public.scheme}://{public.netloc}")
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
