"""REST: files of a box. Contents and trees are streamed both ways, whatever their size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from holdfast.api.box.files import (
    FileInfo,
    FileList,
    Match,
    Matches,
    Mode,
    Move,
    NewFolder,
    Replace,
    Replaced,
    ReplacedList,
)
from holdfast.api.limits import BoxId, PathText, Pattern
from holdfast.server.routes.box.views import file_info, shown
from holdfast.server.routes.requests import (
    BOX_ERRORS,
    OCTETS,
    TAR,
    began,
    binary_answer,
    binary_body,
    held_box,
    opened,
)
from holdfast.server.routes.services import UseBoxes

router = APIRouter(prefix="/v1/boxes/{id}", tags=["files"], responses=BOX_ERRORS)

_MOST = 1 << 62
Path = Annotated[PathText, Query(description="Path in the box. A relative path starts at the workdir.")]


@router.get("/files", response_class=Response, responses=binary_answer("The file."))
async def read_file(
    id: BoxId,
    boxes: UseBoxes,
    path: Path,
    offset: Annotated[int, Query(ge=0, le=_MOST)] = 0,
    length: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
) -> Response:
    """Read a file, or a part of it."""
    box, held = await held_box(boxes, id)
    pieces = box.files.stream(path, offset=offset)
    if length is not None:
        pieces = _first(pieces, length)
    return StreamingResponse(await began(pieces, held), media_type=OCTETS)


async def _first(pieces: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    left = length
    async for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


@router.put("/files", status_code=204, openapi_extra=binary_body())
async def write_file(
    id: BoxId,
    request: Request,
    boxes: UseBoxes,
    path: Path,
    mode: Annotated[int, Query(ge=0, le=0o7777)] = 0o644,
) -> None:
    """Write a file atomically. Missing folders are created."""
    async with opened(boxes, id) as box:
        await box.files.write(path, _body(request), mode=mode)


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece


@router.delete("/files", status_code=204)
async def delete_file(id: BoxId, boxes: UseBoxes, path: Path, recursive: bool = False) -> None:
    """Delete a file, a link or an empty folder; with `recursive`, a folder and everything in it."""
    async with opened(boxes, id) as box:
        await box.files.delete(path, recursive=recursive)


@router.get("/files/stat")
async def stat_file(id: BoxId, boxes: UseBoxes, path: Path) -> FileInfo:
    """Get the properties of a path. Does not follow a link at its end."""
    async with opened(boxes, id) as box:
        return file_info(await box.files.stat(path))


@router.get("/files/list")
async def list_files(id: BoxId, boxes: UseBoxes, path: Path = ".") -> FileList:
    """List a folder, sorted by name."""
    async with opened(boxes, id) as box:
        return FileList(files=tuple(map(file_info, await box.files.list(path))))


@router.get("/files/find")
async def find_files(
    id: BoxId,
    boxes: UseBoxes,
    path: Path = ".",
    pattern: Pattern = "*",
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> FileList:
    """Find everything below a folder whose name or relative path matches a glob."""
    async with opened(boxes, id) as box:
        return FileList(files=tuple(map(file_info, await box.files.find(path, pattern, limit=limit))))


@router.get("/files/search")
async def search_files(
    id: BoxId,
    boxes: UseBoxes,
    pattern: Pattern,
    path: Path = ".",
    glob: Pattern = "*",
    regex: bool = False,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1_000,
) -> Matches:
    """Find lines that contain a text (or match a regular expression) in the text files below a folder."""
    async with opened(boxes, id) as box:
        found = await box.files.search(pattern, path, glob=glob, regex=regex, limit=limit)
    return Matches(matches=tuple(Match(shown(each.path), each.line, shown(each.text)) for each in found))


@router.post("/files/mkdir", status_code=204)
async def make_folder(id: BoxId, folder: NewFolder, boxes: UseBoxes) -> None:
    """Create a folder and its missing parents."""
    async with opened(boxes, id) as box:
        await box.files.mkdir(folder.path)


@router.post("/files/move", status_code=204)
async def move_file(id: BoxId, move: Move, boxes: UseBoxes) -> None:
    """Rename, replacing an existing file."""
    async with opened(boxes, id) as box:
        await box.files.move(move.source, move.target)


@router.post("/files/chmod", status_code=204)
async def change_mode(id: BoxId, mode: Mode, boxes: UseBoxes) -> None:
    """Change the permission bits of a file."""
    async with opened(boxes, id) as box:
        await box.files.chmod(mode.path, mode.mode)


@router.post("/files/replace")
async def replace_in_files(id: BoxId, replace: Replace, boxes: UseBoxes) -> ReplacedList:
    """Replace a text (or a regular expression) in some files, each atomically."""
    async with opened(boxes, id) as box:
        done = await box.files.replace(replace.pattern, replace.replacement, replace.paths, regex=replace.regex)
    return ReplacedList(replaced=tuple(Replaced(shown(each.path), each.count) for each in done))


@router.get("/tree", response_class=Response, responses=binary_answer("A tar archive.", TAR))
async def download_tree(id: BoxId, boxes: UseBoxes, path: Path = ".") -> Response:
    """Download a file or folder as a tar archive. It comes from the box, so unpack it with distrust."""
    box, held = await held_box(boxes, id)
    return StreamingResponse(await began(box.files.download_tar(path), held), media_type=TAR)


@router.put("/tree", status_code=204, openapi_extra=binary_body())
async def upload_tree(id: BoxId, request: Request, boxes: UseBoxes, path: Path = ".") -> None:
    """Unpack a tar archive into a folder, as it arrives."""
    async with opened(boxes, id) as box:
        await box.files.upload_tar(_body(request), path)
