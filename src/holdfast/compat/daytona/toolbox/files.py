"""Routes of the toolbox about files."""

from __future__ import annotations

import contextlib
import json
import posixpath
import secrets
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileInfo, FileKind
from holdfast.api.errors.boxes import BoxError, FileMissing, FileProblem
from holdfast.compat.daytona.http.errors import TOOLBOX, ApiError, api_error, bad_request, document
from holdfast.compat.daytona.http.multipart import parts_of
from holdfast.compat.daytona.http.requests import answer, body_of, flag_of, nothing, number_of, text_of
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.sandbox_record import timestamp
from holdfast.compat.daytona.service import daytona_of
from holdfast.compat.daytona.toolbox.access import Opened, opened
from holdfast.compat.daytona.toolbox.many_files import SMALL, Writes, ahead, in_turns

_MOST_FILES: Final = 10_000
_MOST_MATCHES: Final = 10_000
_MOST_SINGLE: Final = 4
"""More files than that are changed at once, if possible."""
_MAX_PATH: Final = 65_536
_UPLOAD_ERRORS: Final = 100
_LINKS_AT_ONCE: Final = 20
_MOST_OF_LINK: Final = 200
"""Bytes that are printed about what one link leads to."""
_DESCRIBE_TARGETS: Final = 'for link; do stat -L -c "%f %s %Y" -- "$link" 2>/dev/null || echo -; done'


class Paths(Body):
    paths: Annotated[list[Annotated[str, Field(min_length=1, max_length=4095)]], Field(min_length=1, max_length=1000)]


class Replacement(Body):
    files: Annotated[list[Annotated[str, Field(min_length=1, max_length=4095)]], Field(max_length=10_000)]
    pattern: Annotated[str, Field(min_length=1, max_length=65_536)]
    new_value: Annotated[str, Field(max_length=1_048_576)]


def _path(request: Request, name: str = "path", default: str | None = None) -> str:
    path = text_of(request, name, default) or default
    if not path or len(path.encode("utf-8", "replace")) > 4095:
        raise bad_request(f"{name}: a path is expected")
    return path


def _mode(text: str) -> int:
    if not 3 <= len(text) <= 5 or not all("0" <= digit <= "7" for digit in text) or int(text, 8) > 0o7777:
        raise bad_request(f"mode {text[:20]!r}: octal digits such as 644 are expected")
    return int(text, 8)


def _shown(info: FileInfo, owner: str, path: str | None = None) -> dict[str, Any]:
    kinds = {FileKind.FOLDER: stat.S_IFDIR, FileKind.LINK: stat.S_IFLNK}
    modified = timestamp(info.modified_at)
    shown = {
        "name": info.name.encode("utf-8", "replace").decode(),
        "isDir": info.kind is FileKind.FOLDER,
        "size": info.size,
        "modTime": modified,
        "modifiedAt": modified,
        "mode": stat.filemode(kinds.get(info.kind, stat.S_IFREG) | info.mode),
        "permissions": f"{info.mode:04o}",
        "owner": owner,
        "group": owner,
    }
    return shown if path is None else {**shown, "path": path}


async def list_files(request: Request) -> Response:
    async with opened(request) as at:
        path, depth = _path(request, default="."), number_of(request, "depth", 1, 1, 100)
        owner = at.sandbox.details.user
        try:
            listed = await _walk(at.box, path, depth)
        except FileProblem:
            if (await at.box.files.stat(path)).kind not in (FileKind.FOLDER, FileKind.LINK):
                raise ApiError(400, f"{path} is not a directory", "INVALID_FILE_PATH") from None
            raise
        found = await _with_targets(at.box, listed)
    return answer([_shown(info, owner, where if depth > 1 else None) for where, info in found])


async def _walk(box: Box, path: str, depth: int) -> list[tuple[str, FileInfo]]:
    found: list[tuple[str, FileInfo]] = []
    folders = [path]
    for level in range(depth):
        below: list[str] = []
        for folder in folders:
            for info in await box.files.list(folder):
                where = posixpath.join(folder, info.name)
                found.append((where, info))
                if info.kind is FileKind.FOLDER and level + 1 < depth:
                    below.append(where)
                if len(found) > _MOST_FILES:
                    raise bad_request(f"{path} has more than {_MOST_FILES} entries: list a folder below it")
        folders = below
    return found


async def file_info(request: Request) -> Response:
    async with opened(request) as at:
        path = _path(request)
        info = await at.box.files.stat(path)
        if info.kind is FileKind.LINK:
            target = (await _targets(at.box, [path]))[0]
            if target is None:
                await at.box.files.read(path, length=1)  # raises what is wrong with the link
            info = target or info
        return answer(_shown(info, at.sandbox.details.user))


async def _with_targets(box: Box, found: list[tuple[str, FileInfo]]) -> list[tuple[str, FileInfo]]:
    """Files with links described by what they lead to. Links that lead nowhere are left out, as at Daytona."""
    links = [where for where, info in found if info.kind is FileKind.LINK]
    if not links:
        return found
    targets = dict(zip(links, await _targets(box, links), strict=True))
    followed = [(where, targets.get(where, info)) for where, info in found]
    return [(where, info) for where, info in followed if info is not None]


async def _targets(box: Box, links: list[str]) -> list[FileInfo | None]:
    """What links lead to, or None for a link that leads nowhere."""
    found: list[FileInfo | None] = []
    for start in range(0, len(links), _LINKS_AT_ONCE):
        some = links[start : start + _LINKS_AT_ONCE]
        command = ["sh", "-c", _DESCRIBE_TARGETS, "sh", *some]
        done = await box.exec(command, timeout=60, max_output=_MOST_OF_LINK * len(some))
        lines = done.text.splitlines()
        if len(lines) != len(some):
            raise bad_request("links cannot be followed: the sandbox has no sh or no stat command")
        found += [_described(line, link) for line, link in zip(lines, some, strict=True)]
    return found


def _described(line: str, path: str) -> FileInfo | None:
    try:
        mode, size, modified = line.split()
        bits = int(mode, 16)
        kind = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.FOLDER}.get(stat.S_IFMT(bits), FileKind.OTHER)
        return FileInfo(path, kind, int(size), stat.S_IMODE(bits), int(modified) * 1000)
    except ValueError:
        return None


async def delete_file(request: Request) -> Response:
    async with opened(request) as at:
        path, recursive = _path(request), bool(flag_of(request, "recursive"))
        if not recursive and (await at.box.files.stat(path)).kind is FileKind.FOLDER:
            raise bad_request("cannot delete directory without recursive flag")
        await at.box.files.delete(path, recursive=recursive)
    return nothing(204)


async def create_folder(request: Request) -> Response:
    async with opened(request) as at:
        path, mode = _path(request), _mode(text_of(request, "mode", "0755"))
        await at.box.files.mkdir(path)
        await at.box.files.chmod(path, mode)
    return nothing(201)


async def move_file(request: Request) -> Response:
    async with opened(request) as at:
        source, target = _path(request, "source"), _path(request, "destination")
        if (await at.box.files.stat(source)).kind and await _is_folder(at.box, target):
            target = posixpath.join(target, posixpath.basename(source.rstrip("/")))
        await at.box.files.move(source, target)
    return nothing()


async def _is_folder(box: Box, path: str) -> bool:
    try:
        return (await box.files.stat(path)).kind is FileKind.FOLDER
    except FileMissing:
        return False


async def set_permissions(request: Request) -> Response:
    async with opened(request) as at:
        path = _path(request)
        mode = request.query_params.get("mode")
        owner, group = request.query_params.get("owner"), request.query_params.get("group")
        if mode:
            await at.box.files.chmod(path, _mode(mode))
        else:
            await at.box.files.stat(path)
        if (owner or group) and not {owner or group, group or owner} <= {
            "root",
            "0",
            at.sandbox.details.user,
            "daytona",
        }:
            raise bad_request("a box has one user: owner and group cannot be changed")
    return nothing()


async def search_files(request: Request) -> Response:
    """Files by name."""
    async with opened(request) as at:
        path, pattern = _path(request), text_of(request, "pattern")
        found = await at.box.files.find(path, pattern or "*", limit=_MOST_FILES)
    return answer({"files": [_absolute(path, each.path) for each in found]})


async def find_in_files(request: Request) -> Response:
    """Lines of files by their text."""
    async with opened(request) as at:
        path, pattern = _path(request), text_of(request, "pattern")
        if not pattern:
            raise bad_request("pattern: some text is expected")
        if await _is_folder(at.box, path):
            found = await at.box.files.search(pattern, path, limit=_MOST_MATCHES)
            matches = [(_absolute(path, each.path), each.line, each.text) for each in found]
        else:
            text = (await at.box.files.read(path)).decode("utf-8", "replace")
            matches = [(path, number, line) for number, line in enumerate(text.splitlines(), 1) if pattern in line]
    return answer([{"file": file, "line": line, "content": text} for file, line, text in matches[:_MOST_MATCHES]])


def _absolute(folder: str, path: str) -> str:
    shown = path if path.startswith("/") else posixpath.join(folder, path)
    return shown.encode("utf-8", "replace").decode()


async def replace_in_files(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Replacement)
        problems = await _replace(at.box, asked)
    return answer(
        [{"file": file, "success": file not in problems, "error": problems.get(file, "")} for file in asked.files]
    )


async def _replace(box: Box, asked: Replacement) -> dict[str, str]:
    """Returns what is wrong with the files that were not changed."""
    files, problems = list(dict.fromkeys(asked.files)), dict[str, str]()
    if len(files) > _MOST_SINGLE:
        # All in one call, which is much faster. It looks at all before it changes the first.
        try:
            await box.files.replace(asked.pattern, asked.new_value, files)
            return {}
        except FileProblem as error:
            found = zip(files, await in_turns(files, partial(_plain_file_problem, box)), strict=True)
            problems = {file: problem for file, problem in found if problem}
            if not problems:  # it failed at one of them, and changed those before it
                return dict.fromkeys(files, error.message)
            files = [file for file in files if file not in problems]
            return {**problems, **await _replace(box, asked.model_copy(update={"files": files}))}
        except BoxError:
            pass  # one is too large, for example
    found = zip(files, await in_turns(files, partial(_replace_in_one, box, asked)), strict=True)
    return {file: problem for file, problem in found if problem}


async def _plain_file_problem(box: Box, path: str) -> str | None:
    try:
        kind = (await box.files.stat(path)).kind
    except FileProblem as error:
        return error.message
    return None if kind is FileKind.FILE else f"{path} is a {kind.value}"


async def _replace_in_one(box: Box, asked: Replacement, file: str) -> str | None:
    try:
        await box.files.replace(asked.pattern, asked.new_value, [file])
    except BoxError as error:
        return error.message
    return None


# --- up and down ---


async def upload_file(request: Request) -> Response:
    async with opened(request, signed="POST") as at:
        path = _path(request)
        kind = request.headers.get("content-type", "")
        if kind.lower().startswith("multipart/form-data"):
            async for part in parts_of(request.stream(), kind):
                if part.filename is not None or part.name == "file":
                    await at.box.files.write(path, part.data)
                    break
            else:
                raise bad_request("the body has no part called file")
        else:
            await at.box.files.write(path, request.stream())
    return answer({"name": posixpath.basename(path), "path": path, "type": "file"})


async def upload_files(request: Request) -> Response:
    """Parts come in pairs: `files[0].path` with a path, `files[0].file` with the bytes."""
    async with opened(request) as at:
        paths: dict[str, str] = {}
        errors: list[str] = []
        async with Writes(at.box, errors) as writes:
            async for part in parts_of(request.stream(), request.headers.get("content-type", "")):
                index, _, field = part.name.rpartition(".")
                if field == "path":
                    paths[index] = await _small(part.data)
                elif field == "file":
                    if path := paths.get(index) or part.filename:
                        await writes.add(path, part.data)
                    else:
                        errors.append(f"{part.name}: its path is missing")
        if errors:
            shown = document(bad_request("; ".join(errors[:5])), TOOLBOX, request.url.path, "POST")
            return answer({**shown, "errors": errors[:_UPLOAD_ERRORS]}, 400)
    return nothing()


async def _small(data: AsyncIterator[bytes]) -> str:
    pieces = bytearray()
    async for piece in data:
        pieces += piece
        if len(pieces) > _MAX_PATH:
            raise bad_request("a path is too long")
    return pieces.decode("utf-8", "replace")


async def download_file(request: Request) -> Response:
    path = _path(request)

    async def asked(_: Opened) -> str:
        return path

    return await streamed_file(request, asked, signed="GET")


async def streamed_file(
    request: Request, path_of: Callable[[Opened], Awaitable[str]], *, signed: str | None = None
) -> StreamingResponse:
    """Answer with a file of the sandbox, which stays open until all of it is sent."""
    stack = opened(request, signed=signed)
    at = await stack.__aenter__()
    try:
        path = await path_of(at)
        info = await at.box.files.stat(path)
        if info.kind is FileKind.FOLDER:
            raise bad_request("path is a directory")
        pieces = at.box.files.stream(path)
        first = await anext(pieces, b"")
    except BaseException as error:
        await stack.__aexit__(type(error), error, None)
        raise

    async def all_of_it() -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await stack.__aexit__(None, None, None)

    name = quote(posixpath.basename(path))
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}", "x-content-type-options": "nosniff"}
    if info.kind is FileKind.FILE and info.size:
        headers["content-length"] = str(info.size)
    streamed = daytona_of(request).needs.until_stopping(all_of_it())
    return StreamingResponse(streamed, media_type="application/octet-stream", headers=headers)


async def download_files(request: Request) -> Response:
    """Each path becomes a part called `file`, or `error` with an error in JSON."""
    stack = opened(request)
    at = await stack.__aenter__()
    try:
        asked = await body_of(request, Paths)
    except BaseException as error:
        await stack.__aexit__(type(error), error, None)
        raise
    boundary = f"DAYTONA-FILE-BOUNDARY-{secrets.token_hex(16)}"
    where = request.url.path

    async def body() -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(ahead(dict.fromkeys(asked.paths), partial(_small_file, at.box))) as files:
                async for path, known in files:
                    async for piece in _file_part(at.box, path, known, boundary, where):
                        yield piece
            yield f"--{boundary}--\r\n".encode()
        finally:
            await stack.__aexit__(None, None, None)

    streamed = daytona_of(request).needs.until_stopping(body())
    return StreamingResponse(streamed, media_type=f"multipart/form-data; boundary={boundary}")


async def _small_file(box: Box, path: str) -> bytes | ApiError | None:
    """A file that is read at once. None for one that is larger, or no plain file."""
    try:
        info = await box.files.stat(path)
        if info.kind is FileKind.FOLDER:
            raise ApiError(400, f"{path} is a directory", "INVALID_FILE_PATH")
        if info.kind is FileKind.FILE and info.size <= SMALL:
            return await box.files.read(path)
    except (BoxError, ApiError) as error:
        return api_error(error)
    return None


async def _file_part(
    box: Box, path: str, known: bytes | ApiError | None, boundary: str, where: str
) -> AsyncIterator[bytes]:
    length: int | None
    try:
        if isinstance(known, ApiError):
            raise known
        if known is None:
            info = await box.files.stat(path)
            length = info.size if info.kind is FileKind.FILE else None
            pieces = box.files.stream(path)
            first = await anext(pieces, b"")
        else:
            length, pieces, first = len(known), None, known
    except (BoxError, ApiError) as error:
        shown = document(api_error(error), TOOLBOX, where, "POST")
        yield _head(boundary, "error", path, "application/json")
        yield json.dumps(shown).encode() + b"\r\n"
        return
    yield _head(boundary, "file", path, "application/octet-stream", length)
    yield first
    if pieces is not None:
        async for piece in pieces:
            yield piece
    yield b"\r\n"


def _head(boundary: str, name: str, path: str, kind: str, length: int | None = None) -> bytes:
    quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "")
    size = "" if length is None else f"Content-Length: {length}\r\n"
    extended = "" if path.isascii() else f"; filename*=UTF-8''{quote(path)}"
    disposition = f'Content-Disposition: form-data; name="{name}"; filename="{quoted}"{extended}\r\n'
    return f"--{boundary}\r\n{disposition}Content-Type: {kind}\r\n{size}\r\n".encode()


def routes() -> list[Route]:
    table: list[tuple[str, str, Any]] = [
        ("GET", "/files", list_files),
        ("DELETE", "/files", delete_file),
        ("GET", "/files/info", file_info),
        ("POST", "/files/folder", create_folder),
        ("POST", "/files/move", move_file),
        ("POST", "/files/permissions", set_permissions),
        ("GET", "/files/search", search_files),
        ("GET", "/files/find", find_in_files),
        ("POST", "/files/replace", replace_in_files),
        ("POST", "/files/upload-v2", upload_file),
        ("POST", "/files/upload", upload_file),
        ("POST", "/files/bulk-upload", upload_files),
        ("GET", "/files/download", download_file),
        ("POST", "/files/bulk-download", download_files),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
