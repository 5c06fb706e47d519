"""The files of a sprite over HTTP."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileInfo, FileKind
from holdfast.api.errors.boxes import FileExists, FileMissing, FileProblem

Operation = Callable[[Box, Request], Awaitable[Response]]


def problem(error: FileProblem) -> Response:
    status = 404 if isinstance(error, FileMissing) else 409 if isinstance(error, FileExists) else 400
    return JSONResponse({"error": error.message}, status)


def _place(path: str, folder: str | None) -> str:
    return posixpath.normpath(posixpath.join("/", folder or "/", path))


def _asked(request: Request) -> str:
    return _place(request.query_params["path"], request.query_params.get("workingDir"))


def _entry(info: FileInfo) -> dict[str, Any]:
    return {
        "name": posixpath.basename(info.path),
        "path": info.path,
        "size": info.size,
        "mode": f"{info.mode & 0o7777:04o}",
        "isDir": info.kind is FileKind.FOLDER,
    }


async def list_files(box: Box, request: Request) -> Response:
    path = _asked(request)
    info = await box.files.stat(path)
    found = await box.files.list(path) if info.kind is FileKind.FOLDER else [info]
    entries = [_entry(each) for each in found]
    return JSONResponse({"path": path, "entries": entries, "count": len(entries)})


async def read(box: Box, request: Request) -> Response:
    return Response(await box.files.read(_asked(request)), media_type="application/octet-stream")


async def write(box: Box, request: Request) -> Response:
    path, mode = _asked(request), request.query_params.get("mode", "0644")
    data = await request.body()
    await box.files.write(path, data, mode=int(mode, 8))
    return JSONResponse({"path": path, "size": len(data), "mode": mode})


async def delete(box: Box, request: Request) -> Response:
    path = _asked(request)
    await box.files.delete(path, recursive=request.query_params.get("recursive") == "true")
    return JSONResponse({"deleted": [path], "count": 1})


async def rename(box: Box, request: Request) -> Response:
    told = await request.json()
    source, dest = (_place(told[each], told.get("workingDir")) for each in ("source", "dest"))
    await box.files.move(source, dest)
    return JSONResponse({"source": source, "dest": dest})


async def copy(box: Box, request: Request) -> Response:
    told = await request.json()
    source, dest = (_place(told[each], told.get("workingDir")) for each in ("source", "dest"))
    await box.files.stat(source)
    done = await box.exec(["cp", "-a" if told.get("recursive") else "-p", "--", source, dest], cwd="/")
    if not done.ok:
        return JSONResponse({"error": done.stderr.decode(errors="replace")}, 400)
    return JSONResponse({"source": source, "dest": dest, "count": 1})


async def chmod(box: Box, request: Request) -> Response:
    told = await request.json()
    path = _place(told["path"], told.get("workingDir"))
    if told.get("recursive"):
        await box.exec(["chmod", "-R", told["mode"], "--", path], cwd="/")
    else:
        await box.files.chmod(path, int(told["mode"], 8))
    return JSONResponse({"path": path, "mode": told["mode"], "count": 1})


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "list"): list_files,
    ("GET", "read"): read,
    ("PUT", "write"): write,
    ("DELETE", "delete"): delete,
    ("POST", "rename"): rename,
    ("POST", "copy"): copy,
    ("POST", "chmod"): chmod,
}
