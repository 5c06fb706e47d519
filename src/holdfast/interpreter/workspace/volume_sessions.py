"""Sessions on a volume: the memory and the workspace configuration of an interpreter, for another box.

The manifest describes a session and has a revision; the state is in a file beside it. Saving from an older revision is
refused and changes nothing, so no process overwrites a session that it has not seen.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.ids import now_ms
from holdfast.interpreter.kernel import state
from holdfast.interpreter.kernel.context import Context, SavedNames
from holdfast.interpreter.kernel.state import Checkpoint
from holdfast.interpreter.workspace.manifest import Manifest, Manifests, name_of
from holdfast.interpreter.workspace.volumes import MEMORY, volume_of

_SUFFIX: Final = ".state"


@dataclass(slots=True)
class Sessions:
    """The sessions of one user in one workspace, for one interpreter."""

    workspace: str
    user: str
    revision: int = 0
    """The revision that was saved or loaded last, on which the next one is based."""

    async def save(
        self, context: Context, session: str, about: Mapping[str, Any], *, now: Callable[[], int] = now_ms
    ) -> Checkpoint:
        """Raises `ManifestConflict` if another process has saved meanwhile."""
        box = context.box
        manifests = self._manifests(box)
        before = await manifests.read(session) if self.revision else None
        saved = await state.save(context, f"{_prefix(session)}{secrets.token_hex(8)}{_SUFFIX}", now=now)
        try:
            content = {**about, "state": saved.to_json()}
            made = await manifests.save(Manifest(session, self.revision, content), now=now())
        except BaseException:
            await _remove(box, saved.path)
            raise
        self.revision = made.revision
        if before is not None:
            with suppress(InvalidInterpreter):
                await _remove(box, _state_path(before))
        return saved

    async def load(self, context: Context, session: str) -> tuple[Manifest, SavedNames]:
        """Replace the memory of the context with the session."""
        manifest = await self._manifests(context.box).read(session)
        if manifest is None:
            raise InvalidInterpreter(
                f"there is no session {session} of user {self.user} in workspace {self.workspace}",
                hint="save it first: await interpreter.save_session()",
            )
        loaded = await state.load(context, _state_path(manifest))
        self.revision = manifest.revision
        return manifest, loaded

    def _manifests(self, box: Box) -> Manifests:
        if volume_of(box.spec.volumes) is None:
            raise InvalidInterpreter(
                "a session needs a volume, and this interpreter has none",
                hint="give the interpreter a workspace or a volume",
            )
        return Manifests(box, workspace=self.workspace, user=self.user)


def _prefix(session: str) -> str:
    return f"{MEMORY}/buffers/session-{name_of(session, 'session')}-"


def _state_path(manifest: Manifest) -> str:
    """The state file of a manifest. Code in a box can write manifests, so only files of the session are accepted."""
    path = Checkpoint.from_json(manifest.content.get("state")).path or ""
    prefix = _prefix(manifest.session)
    inner = path.removeprefix(prefix).removesuffix(_SUFFIX)
    if not path.startswith(prefix) or not path.endswith(_SUFFIX) or not inner.isalnum():
        raise InvalidInterpreter(f"session {manifest.session} has no valid state file", hint="save it again")
    return path


async def _remove(box: Box, path: str | None) -> None:
    if path is not None:
        with suppress(BoxError):
            await box.files.delete(path)
