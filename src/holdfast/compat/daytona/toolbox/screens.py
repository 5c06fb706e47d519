"""Pictures and recordings of a sandbox's desktop, and what is on it.

A recording is a file in the sandbox, written by a process there. Which there are is read from the box, so nothing is
remembered here.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileInfo
from holdfast.api.box.process import Process, ProcessState
from holdfast.api.errors.boxes import FileMissing
from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_found
from holdfast.compat.daytona.http.requests import NO_CONTENT, answer, body_of, flag_of, nothing, number_in, number_of
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.sandbox_record import timestamp
from holdfast.compat.daytona.toolbox.access import Opened, opened
from holdfast.compat.daytona.toolbox.desktop import document_in, end, look, missing, on_desktop
from holdfast.compat.daytona.toolbox.files import streamed_file
from holdfast.time_limit import time_limit

_FORMATS: Final = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "webp": "webp"}
_QUALITY: Final = 85
_LARGEST: Final = 65_535
_NUMBER: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_LEAST_SCALE: Final = 0.05
_FOLDER: Final = "/tmp/daytona-recordings"
_MOST: Final = 200
_RECORDING: Final = re.compile(r"(?P<id>[0-9a-f]{16})-(?P<at>[0-9]{13})(?P<label>-[A-Za-z0-9_-]{1,60})?\.avi")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_PROGRAM: Final = "screen"
_BEGIN_SECONDS: Final = 20.0


# --- pictures ---


async def picture(request: Request) -> Response:
    return await _picture(request, {}, {"format": "png", "quality": _QUALITY, "scale": 1.0})


async def region(request: Request) -> Response:
    return await _picture(request, _region(request), {"format": "png", "quality": _QUALITY, "scale": 1.0})


async def compressed(request: Request) -> Response:
    return await _picture(request, {}, _options(request))


async def compressed_region(request: Request) -> Response:
    return await _picture(request, _region(request), _options(request))


def _region(request: Request) -> dict[str, Any]:
    missing_fields = [each for each in ("x", "y", "width", "height") if not request.query_params.get(each)]
    if missing_fields:
        raise bad_request(f"the query parameter {missing_fields[0]} is missing")
    place = {each: number_of(request, each, 0, 0, _LARGEST) for each in ("x", "y")}
    return {**place, **{each: number_of(request, each, 1, 1, _LARGEST) for each in ("width", "height")}}


def _options(request: Request) -> dict[str, Any]:
    kind = request.query_params.get("format") or "jpeg"
    if kind.lower() not in _FORMATS:
        raise bad_request(f"{kind[:20]!r} is not a format: png, jpeg or webp")
    scale = request.query_params.get("scale") or "1"
    if not _NUMBER.fullmatch(scale) or not _LEAST_SCALE <= float(scale) <= 1:
        raise bad_request(f"the scale {scale[:20]!r} is not a number from {_LEAST_SCALE} to 1")
    quality = number_in(request.query_params.get("quality") or str(_QUALITY), "quality", 0, 100)
    return {"format": _FORMATS[kind.lower()], "quality": max(1, quality), "scale": float(scale)}


async def _picture(request: Request, part: dict[str, Any], options: dict[str, Any]) -> Response:
    cursor = flag_of(request, "showCursor") or False
    async with opened(request) as at:
        told, data = await look(at, await on_desktop(at), do="picture", cursor=cursor, **part, **options)
    size, x, y = (_whole(told.get(each)) for each in ("size", "x", "y"))
    if size != len(data):
        raise ApiError(500, "the picture of the screen is not complete")
    shown = base64.b64encode(data).decode()
    return answer({"screenshot": shown, "cursorPosition": {"x": x, "y": y}, "sizeBytes": size})


def _whole(value: object) -> int:
    """Returns a number that the box gave, which may be anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 40 else 0


# --- what is on it ---


async def display(request: Request) -> Response:
    async with opened(request) as at:
        told, _ = await look(at, await on_desktop(at), do="look")
    size = {"width": _whole(told.get("width")), "height": _whole(told.get("height"))}
    return answer({"displays": [{"id": 0, "x": 0, "y": 0, **size, "isActive": True}]})


async def windows(request: Request) -> Response:
    async with opened(request) as at:
        told, _ = await look(at, await on_desktop(at), do="windows")
    found = told.get("windows")
    shown = [
        {
            **{name: _whole(each.get(name)) for name in ("id", "x", "y", "width", "height")},
            "title": str(each.get("title", ""))[:500],
            "isActive": each.get("isActive") is True,
        }
        for each in (found if isinstance(found, list) else [])
        if isinstance(each, dict)
    ]
    return answer({"windows": shown})


# --- recordings ---


class NewRecording(Body):
    label: Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z0-9_-]*$")] | None = None


class EndedRecording(Body):
    id: Annotated[str, Field(max_length=50)]


@dataclass(frozen=True, slots=True)
class Recording:
    id: str
    began: int
    """UTC milliseconds."""
    file: FileInfo
    process: str | None
    """The process that writes it, while it does."""

    def to_json(self) -> dict[str, Any]:
        changed = max(self.began, int(self.file.modified_at))
        ended = {} if self.process is not None else {"endTime": timestamp(changed)}
        return {
            "id": self.id,
            "fileName": self.file.name,
            "filePath": f"{_FOLDER}/{self.file.name}",
            "startTime": timestamp(self.began),
            "status": "completed" if self.process is None else "recording",
            "durationSeconds": round((changed - self.began) / 1000, 1),
            "sizeBytes": self.file.size,
            **ended,
        }


async def _recordings(box: Box) -> dict[str, Recording]:
    """Returns the recordings of a box, oldest first, by id."""
    try:
        there = await box.files.list(_FOLDER)
    except FileMissing:
        return {}
    writing = {}
    for info in await box.processes():
        words = bootstrap.words_of(info.argv, _PROGRAM)
        if words and info.state is ProcessState.RUNNING and (found := _path_in(words[0])):
            writing[found] = info.id
    named = sorted((match["at"], match, info) for info in there if (match := _RECORDING.fullmatch(info.name)))
    return {
        match["id"]: Recording(match["id"], int(at), info, writing.get(f"{_FOLDER}/{info.name}"))
        for at, match, info in named[-_MOST:]
    }


def _path_in(asked: str) -> str | None:
    path = document_in(asked.encode()).get("path")
    return path if isinstance(path, str) else None


async def _one(box: Box, id: str) -> Recording:
    found = (await _recordings(box)).get(id) if _ID.fullmatch(id) else None
    if found is None:
        raise not_found(f"there is no recording {id[:50]!r}")
    return found


async def start_recording(request: Request) -> Response:
    new = await body_of(request, NewRecording)
    async with opened(request) as at:
        environment = await on_desktop(at)
        there = await _recordings(at.box)
        if any(each.process for each in there.values()):
            raise conflict("a recording is in progress: stop it first")
        if len(there) >= _MOST:
            raise conflict(f"a sandbox has at most {_MOST} recordings: delete some")
        id = secrets.token_hex(8)
        name = f"{id}-{at.parts.boxes.clock():013d}{f'-{new.label}' if new.label else ''}.avi"
        argv = bootstrap.argv(("python3",), _PROGRAM, json.dumps({"do": "record", "path": f"{_FOLDER}/{name}"}))
        process = await at.box.spawn(argv, env=environment, stdin=True)
        await process.write(bootstrap.stdin(_PROGRAM))
        await _begun(process)
        recording = (await _recordings(at.box)).get(id)
        if recording is None:
            raise ApiError(500, "the recording was not written")
        return answer(recording.to_json(), 201)


async def _begun(process: Process) -> None:
    """Wait until the program has begun to record. Raises if it cannot."""
    async with time_limit(_BEGIN_SECONDS):
        async for chunk in process.output("stdout", 0):
            told = document_in(chunk.data)
            if "recording" in told:
                return
            if told.get("error") == "missing":
                raise missing([str(told.get("message"))[:50]])
            break
    raise ApiError(500, "the recording has not begun")


async def stop_recording(request: Request) -> Response:
    wanted = await body_of(request, EndedRecording)
    async with opened(request) as at:
        found = await _one(at.box, wanted.id)
        if found.process is None:
            raise bad_request(f"recording {found.id} has ended")
        await end(await at.box.process(found.process))
        return answer((await _one(at.box, found.id)).to_json())


async def list_recordings(request: Request) -> Response:
    async with opened(request) as at:
        found = await _recordings(at.box)
    return answer({"recordings": [each.to_json() for each in found.values()]})


async def get_recording(request: Request) -> Response:
    async with opened(request) as at:
        return answer((await _one(at.box, request.path_params["recording"])).to_json())


async def delete_recording(request: Request) -> Response:
    async with opened(request) as at:
        found = await _one(at.box, request.path_params["recording"])
        if found.process is not None:
            raise conflict(f"recording {found.id} is in progress: stop it first")
        await at.box.files.delete(f"{_FOLDER}/{found.file.name}")
    return nothing(NO_CONTENT)


async def download_recording(request: Request) -> StreamingResponse:
    async def path_of(at: Opened) -> str:
        return f"{_FOLDER}/{(await _one(at.box, request.path_params['recording'])).file.name}"

    return await streamed_file(request, path_of)


def routes() -> list[Route]:
    screenshot, recordings = "/computeruse/screenshot", "/computeruse/recordings"
    one = f"{recordings}/{{recording}}"
    return [
        Route(screenshot, picture, methods=["GET"]),
        Route(f"{screenshot}/region", region, methods=["GET"]),
        Route(f"{screenshot}/compressed", compressed, methods=["GET"]),
        Route(f"{screenshot}/region/compressed", compressed_region, methods=["GET"]),
        Route("/computeruse/display/info", display, methods=["GET"]),
        Route("/computeruse/display/windows", windows, methods=["GET"]),
        Route(recordings, list_recordings, methods=["GET"]),
        Route(f"{recordings}/start", start_recording, methods=["POST"]),
        Route(f"{recordings}/stop", stop_recording, methods=["POST"]),
        Route(one, get_recording, methods=["GET"]),
        Route(one, delete_recording, methods=["DELETE"]),
        Route(f"{one}/download", download_recording, methods=["GET"]),
    ]
