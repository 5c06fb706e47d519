"""Routes of the toolbox about language servers, which run in the box if its image has them."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from typing import Annotated, Any, Final
from urllib.parse import unquote

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_supported
from holdfast.compat.daytona.http.requests import answer, body_of, nothing, text_of
from holdfast.compat.daytona.language_server import COMMANDS, LanguageServer
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.toolbox.access import Opened, opened

_MOST: Final = 100
_SMALL: Final = 4096
_MOST_TEXT: Final = 8 * 1024 * 1024
_MOST_SYMBOLS: Final = 10_000

Path = Annotated[str, Field(min_length=1, max_length=4095, pattern=r"^[^\x00]+$")]


class Project(Body):
    language_id: Annotated[str, Field(max_length=50)]
    path_to_project: Path


class Document(Project):
    uri: Path


class Position(Body):
    line: Annotated[int, Field(ge=0, lt=1 << 31)]
    character: Annotated[int, Field(ge=0, lt=1 << 31)]


class Completion(Document):
    position: Position
    context: dict[str, Any] | None = None


class LanguageServers:
    """The language servers that this server started. They end with it."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str, str], LanguageServer] = {}
        self._starting = asyncio.Lock()

    def find(self, at: Opened, project: Project) -> LanguageServer:
        server = self._running.get(_key(at, project))
        if server is None or server.ended:
            raise ApiError(400, "the language server is not started: start it first", "LSP_SERVER_NOT_INITIALIZED")
        return server

    async def start(self, at: Opened, project: Project) -> None:
        async with self._starting:
            key = _key(at, project)
            known = self._running.pop(key, None)
            if known is not None and not known.ended:
                self._running[key] = known
                return
            if known is not None:
                await known.close()
            if len(self._running) >= _MOST:
                raise conflict(f"this server runs at most {_MOST} language servers: stop some")
            command = await _command(at, project.language_id)
            box = await at.parts.boxes.open(at.box.id)
            self._running[key] = await LanguageServer.start(box, command, key[2], at.environment())

    async def stop(self, at: Opened, project: Project) -> None:
        if (server := self._running.pop(_key(at, project), None)) is not None:
            await server.close()

    async def close(self) -> None:
        servers, self._running = list(self._running.values()), {}
        await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)


def _key(at: Opened, project: Project) -> tuple[str, str, str]:
    return at.box.id, project.language_id, _absolute(at, project.path_to_project)


def _absolute(at: Opened, path: str) -> str:
    return posixpath.normpath(posixpath.join(at.sandbox.row.spec.workdir, path))


async def _command(at: Opened, language: str) -> str:
    if language not in COMMANDS:
        raise bad_request(f"languageId {language!r}: one of {', '.join(COMMANDS)} is expected")
    names = [shlex.split(command)[0] for command in COMMANDS[language]]
    script = 'for each in "$@"; do if command -v $each >/dev/null; then echo $each; exit; fi; done'
    command = ["/bin/sh", "-c", script, "sh", *names]
    done = await at.box.exec(command, env=at.environment(), timeout=30, max_output=_SMALL)
    found = done.text.strip()
    if not found:
        raise not_supported(
            f"this sandbox has no language server for {language}: use an image that has one of {', '.join(names)}"
        )
    for each in COMMANDS[language]:
        if each.partition(" ")[0] == found:
            return each
    raise not_supported(f"the sh of this sandbox does not tell which language server for {language} it has")


def _servers(request: Request) -> LanguageServers:
    servers: LanguageServers = request.app.state.language_servers
    return servers


def _uri(at: Opened, uri: str) -> str:
    """The SDK puts `file://` before a path, which may be relative."""
    return f"file://{_absolute(at, unquote(uri.removeprefix('file://')))}"


# --- routes ---


async def start(request: Request) -> Response:
    async with opened(request) as at:
        await _servers(request).start(at, await body_of(request, Project))
    return nothing()


async def stop(request: Request) -> Response:
    async with opened(request) as at:
        await _servers(request).stop(at, await body_of(request, Project))
    return nothing()


async def did_open(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Document)
        server = _servers(request).find(at, asked)
        uri = _uri(at, asked.uri)
        text = (await at.box.files.read(uri.removeprefix("file://"), length=_MOST_TEXT)).decode("utf-8", "replace")
        document = {"uri": uri, "languageId": asked.language_id, "version": 1, "text": text}
        await server.tell("textDocument/didOpen", {"textDocument": document})
    return nothing()


async def did_close(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Document)
        server = _servers(request).find(at, asked)
        await server.tell("textDocument/didClose", {"textDocument": {"uri": _uri(at, asked.uri)}})
    return nothing()


async def completions(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Completion)
        server = _servers(request).find(at, asked)
        parameters: dict[str, Any] = {
            "textDocument": {"uri": _uri(at, asked.uri)},
            "position": {"line": asked.position.line, "character": asked.position.character},
        }
        if asked.context:
            parameters["context"] = asked.context
        found = await server.ask("textDocument/completion", parameters)
    if isinstance(found, list):
        found = {"isIncomplete": False, "items": found}
    return answer(found or {"isIncomplete": False, "items": []})


async def document_symbols(request: Request) -> Response:
    async with opened(request) as at:
        asked = _asked(request, text_of(request, "uri"))
        server = _servers(request).find(at, asked)
        uri = _uri(at, asked.uri)
        found = await server.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    return answer(_symbols(found, uri))


async def workspace_symbols(request: Request) -> Response:
    async with opened(request) as at:
        server = _servers(request).find(at, _asked(request, "file:///"))
        found = await server.ask("workspace/symbol", {"query": text_of(request, "query", "")})
    return answer(_symbols(found, ""))


def _asked(request: Request, uri: str) -> Document:
    return Document(
        language_id=text_of(request, "languageId"), path_to_project=text_of(request, "pathToProject"), uri=uri
    )


def _symbols(found: Any, uri: str) -> list[dict[str, Any]]:
    """Symbols in one list, whether the server answered with a list or with a tree."""
    symbols: list[dict[str, Any]] = []
    waiting = [each for each in found or [] if isinstance(each, dict)]
    while waiting and len(symbols) < _MOST_SYMBOLS:
        each = waiting.pop(0)
        location = each.get("location") or {"uri": uri, "range": each.get("range")}
        symbols.append({"name": each.get("name", ""), "kind": each.get("kind", 0), "location": location})
        waiting[:0] = [child for child in each.get("children") or [] if isinstance(child, dict)]
    return symbols


def routes() -> list[Route]:
    table: list[tuple[str, str, Any]] = [
        ("POST", "/lsp/start", start),
        ("POST", "/lsp/stop", stop),
        ("POST", "/lsp/did-open", did_open),
        ("POST", "/lsp/did-close", did_close),
        ("POST", "/lsp/completions", completions),
        ("GET", "/lsp/document-symbols", document_symbols),
        ("GET", "/lsp/workspacesymbols", workspace_symbols),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
