"""Manifests of sessions, on the volume: what another process needs to continue a session, with a revision.

A manifest is replaced as a whole, by a process that knows the newest revision. If the volume has a newer one, that is a
conflict, and nothing is written. An imported manifest replaces the old one; nothing is merged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, unquote

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import OutputTooLarge, Unsupported
from holdfast.api.errors.interpreters import InvalidInterpreter, ManifestConflict, WorkspaceFailed
from holdfast.guest.volume_manifests import MAX_BYTES, MAX_NAMES
from holdfast.interpreter.workspace.volumes import MEMORY

_FORMAT: Final = 1
_LONGEST_ID: Final = 160
"""The longest file name of an id, in bytes."""
_DEEPEST: Final = 64
_SECONDS: Final = 60.0
_HEAD: Final = 256
"""The bytes of a manifest in addition to its content."""


@dataclass(frozen=True, slots=True)
class Manifest:
    session: str
    revision: int
    """0: never written."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON, which the interpreter chooses."""
    saved_at: int = 0
    """UTC milliseconds, by the clock of the process that saved it."""


class Manifests:
    """The manifests of one user in one workspace. The box belongs to the caller, and mounts the volume."""

    def __init__(self, box: Box, *, workspace: str, user: str, root: str = MEMORY) -> None:
        self._box = box
        self._root = root
        self._folders = ("meta", "workspaces", name_of(workspace, "workspace"), "users", name_of(user, "user"))

    def path(self, session: str) -> str:
        """The path of a manifest in the box."""
        return "/".join((self._root, *self._folders, _file_of(session)))

    async def read(self, session: str) -> Manifest | None:
        answer, data = await self._ask("read", _file_of(session))
        return None if answer["status"] == "missing" else _parsed(session, data, self.path(session))

    async def save(self, manifest: Manifest, *, now: int) -> Manifest:
        """Replace the manifest. `manifest.revision` is the revision that it is based on; returns the new manifest.

        Raises `ManifestConflict` and changes nothing if another process has saved meanwhile.
        """
        content = _checked(manifest.content)
        document = {"format": _FORMAT, "session": manifest.session, "savedAt": now, "content": content}
        text = json.dumps(document, allow_nan=False).encode()
        if len(text) > MAX_BYTES - _HEAD:
            raise InvalidInterpreter(
                f"the manifest of session {manifest.session} has {len(text):,} bytes; the limit is {MAX_BYTES:,}",
                hint="write large parts to a file on the volume, and its path to the manifest",
            )
        answer, _ = await self._ask("write", _file_of(manifest.session), manifest.revision, text)
        if answer["status"] == "conflict":
            raise ManifestConflict(
                f"session {manifest.session} was saved by another process: the volume has revision "
                f"{_whole(answer.get('revision'))}, and this one is based on {manifest.revision}",
                hint="load the newer one and continue from there, or save under another session",
            )
        return Manifest(manifest.session, manifest.revision + 1, content, now)

    async def sessions(self) -> tuple[str, ...]:
        """The ids of all sessions that have a manifest."""
        answer, _ = await self._ask("list", "")
        names = answer.get("names")
        if not isinstance(names, list) or len(names) > MAX_NAMES:
            raise _invalid_answer(self._box)
        found = (_session_of(each) for each in names if isinstance(each, str))
        return tuple(each for each in found if each is not None)

    async def _ask(
        self, operation: str, name: str, revision: int = 0, content: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        request = {"op": operation, "root": self._root, "folders": self._folders, "name": name, "revision": revision}
        try:
            done = await self._box.exec(
                (*await python_of(self._box), "-I", "-c", _program()),
                stdin=json.dumps(request).encode() + b"\n" + content,
                cwd="/",
                timeout=_SECONDS,
                max_output=2 * MAX_BYTES,
            )
        except OutputTooLarge:
            raise _invalid_answer(self._box) from None
        head, _, data = done.stdout.partition(b"\n")
        try:
            answer = json.loads(head[: 16 * MAX_BYTES])
        except (ValueError, RecursionError):
            answer = None
        if not done.ok or not isinstance(answer, dict):
            raise _invalid_answer(self._box, done.stderr)
        place = "/".join((self._root, *self._folders, name)).rstrip("/")
        match answer.get("status"):
            case "found" | "missing" | "written" | "conflict":
                return answer, data
            case "damaged":
                raise ManifestConflict(
                    f"{place} is not a valid manifest, and is not overwritten: {_shown(answer.get('message'))}",
                    hint=f"check {place} in the box, and move it away",
                )
            case "locked":
                raise ManifestConflict(
                    f"another process holds the lock of {place}", hint="try again, or end that process"
                )
            case "failed":
                raise WorkspaceFailed(
                    f"{place} cannot be used: {_shown(answer.get('message'))}",
                    hint=f"check that the box mounts {self._root}",
                )
        raise _invalid_answer(self._box)


def imported(document: object, session: str) -> Manifest:
    """Read an exported manifest as the manifest of a session."""
    if not isinstance(document, Mapping) or not isinstance(document.get("content"), Mapping):
        raise InvalidInterpreter("this is not an exported state", hint="give what export_state returned")
    if document.get("format") != _FORMAT:
        raise InvalidInterpreter(
            f"this state has format {_shown(document.get('format'))}, and this version reads format {_FORMAT}",
            hint="import it with the version that exported it, or a newer one",
        )
    revision = document.get("revision", 0)
    if type(revision) is not int or not 0 <= revision < 1 << 53:
        raise InvalidInterpreter(f"{_shown(revision)} is not a revision")
    return Manifest(session, revision, _checked(document["content"]), _whole(document.get("savedAt")))


def exported(manifest: Manifest) -> dict[str, Any]:
    """The document that `imported` reads."""
    return {
        "format": _FORMAT,
        "session": manifest.session,
        "revision": manifest.revision,
        "savedAt": manifest.saved_at,
        "content": dict(manifest.content),
    }


def name_of(id: str, what: str) -> str:
    """The file name of an id. It contains no path separators, and is different for every id."""
    if not isinstance(id, str) or not id:
        raise InvalidInterpreter(f"a {what} needs an id", hint="give a text that is not empty")
    try:
        name = quote(id, safe="@+=, ")
    except UnicodeEncodeError:
        raise InvalidInterpreter(f"the {what} id {id[:40]!a} is not valid text") from None
    # A leading dot would make it hidden, or lead to the parent folder.
    name = name.replace(".", "%2E", 1) if name.startswith(".") else name
    if len(name) > _LONGEST_ID:
        raise InvalidInterpreter(f"the {what} id {id[:40]!r}… is too long", hint=f"{_LONGEST_ID} characters at most")
    return name


def _file_of(session: str) -> str:
    return f"session-{name_of(session, 'session')}.json"


def _session_of(name: str) -> str | None:
    """The id of a file name. None if it is not a file of ours."""
    id = unquote(name.removeprefix("session-").removesuffix(".json"), errors="replace")
    try:
        return id if _file_of(id) == name else None
    except InvalidInterpreter:
        return None


async def python_of(box: Box) -> tuple[str, ...]:
    """The Python that runs our code in a box."""
    try:
        return await box.python()
    except Unsupported:
        return ("python3",)


@cache
def _program() -> str:
    return resources.files("holdfast.guest").joinpath("volume_manifests.py").read_text()


def _parsed(session: str, data: bytes, place: str) -> Manifest:
    try:
        return imported(json.loads(data), session)
    except (ValueError, RecursionError, InvalidInterpreter) as error:
        raise ManifestConflict(
            f"{place} is not a valid manifest: {error}", hint=f"check {place} in the box, and move it away"
        ) from None


def _checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the content, as plain JSON."""
    if _depth(content) > _DEEPEST:
        raise InvalidInterpreter(f"a manifest may nest at most {_DEEPEST} deep")
    try:
        text = json.dumps(content, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInterpreter(f"a manifest must be plain JSON: {error}") from None
    found: dict[str, Any] = json.loads(text)
    if not isinstance(found, dict):
        raise InvalidInterpreter("the content of a manifest must be a mapping")
    return found


def _depth(value: object) -> int:
    """Without recursion, because the value is not trusted."""
    deepest, waiting = 0, [(value, 1)]
    while waiting and deepest <= _DEEPEST:
        each, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(each, Mapping):
            waiting += [(inner, depth + 1) for inner in each.values()]
        elif isinstance(each, (list, tuple)):
            waiting += [(inner, depth + 1) for inner in each]
    return deepest


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _shown(value: object) -> str:
    text = str(value)[:200]
    return "".join(each if each.isprintable() else "�" for each in text)


def _invalid_answer(box: Box, stderr: bytes = b"") -> WorkspaceFailed:
    error = _shown(stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    return WorkspaceFailed(
        f"box {box.id} returned no valid answer about its manifests{': ' if error else ''}{error}",
        hint=f"its Python may be missing or broken: holdfast box exec {box.id} -- python3 --version",
    )
