"""The MCP server of the thread reader: its tools, each call behind the token's grant.

A call is answered by whatever the token opens at that moment, so a token that is revoked opens nothing from
the next call on. What goes wrong is a tool error of one sentence that tells the model what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import msgspec
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from moonfold_handoff.errors import HandoffError
from moonfold_handoff.reading import showing, tools
from moonfold_handoff.reading.access import AccessDeniedError, open_reader
from moonfold_handoff.reading.answers import Found, Page, ReadingError
from moonfold_handoff.reading.configuration import SERVER
from moonfold_handoff.services import Services
from moonfold_handoff.store.connection import TRANSIENT, RedisError

REFUSED = (
    "The earlier conversation cannot be read with this access, which is not valid or has ended: go on with "
    "what the handoff shows, and ask the user for a new handoff if you need more."
)
AWAY = "The earlier conversation cannot be reached just now: call again in a few seconds."
GONE = (
    "The earlier conversation is not kept any more, or is damaged: go on with what the handoff shows, and "
    "ask the user for what is missing."
)
UNKNOWN_TOOL = f"There is no such tool here: use {tools.READ} or {tools.SEARCH}."

_ONLY_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)

TOOLS = [
    Tool(
        name=tools.READ,
        title="Read the earlier conversation",
        description=tools.READ_DESCRIPTION,
        input_schema=tools.schema(tools.ReadArguments),
        output_schema=tools.schema(Page),
        annotations=_ONLY_READS,
    ),
    Tool(
        name=tools.SEARCH,
        title="Search the earlier conversation",
        description=tools.SEARCH_DESCRIPTION,
        input_schema=tools.schema(tools.SearchArguments),
        output_schema=tools.schema(Found),
        annotations=_ONLY_READS,
    ),
]

logger = structlog.get_logger()

Context = ServerRequestContext[Any, Any]


def create_server(services: Services, token_of: Callable[[Context], str]) -> Server[Any]:
    """Return the server.

    Args:
        services: the servers that hold tokens and threads.
        token_of: where the token of a call comes from.
    """

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=TOOLS)

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            return await _answer(services, token_of(context), params)
        except (tools.ArgumentError, ReadingError) as error:
            return _error(str(error))
        except AccessDeniedError:
            return _error(REFUSED)
        except HandoffError as error:
            logger.warning("reader_finds_no_thread", code=error.code.value)
            return _error(GONE)
        except (*TRANSIENT, RedisError) as error:
            logger.warning("reader_waits_for_server", error=type(error).__name__)
            return _error(AWAY)

    return Server(
        SERVER,
        title="Moonfold thread reader",
        version=version("moonfold-handoff"),
        instructions=tools.INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema={tool.name: tool.input_schema for tool in TOOLS}.get,
    )


async def _answer(services: Services, token: str, params: CallToolRequestParams) -> CallToolResult:
    match params.name:
        case tools.READ:
            read = tools.parse(params.arguments, tools.ReadArguments)
            reader = await open_reader(services, token, thread_id=read.thread_id)
            page = await reader.read(**tools.given(read))
            return _result(page, showing.page_text(page))
        case tools.SEARCH:
            search = tools.parse(params.arguments, tools.SearchArguments)
            reader = await open_reader(services, token, thread_id=search.thread_id)
            found = await reader.search(**tools.given(search))
            return _result(found, showing.found_text(found))
    return _error(UNKNOWN_TOOL)


def _result(answer: Page | Found, text: str) -> CallToolResult:
    structured: dict[str, Any] = msgspec.to_builtins(answer)
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured)


def _error(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=sentence)], is_error=True)
