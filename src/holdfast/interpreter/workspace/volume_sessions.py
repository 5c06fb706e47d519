"""Sessions on a volume: what an interpreter has in memory, and what it works on, for another box and another day.

The manifest says what there is, with a revision; the state lies beside it, in a file of its own. Who saves from an
older revision is refused and changes nothing: neither is ever overwritten by somebody who did not know of it.
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
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.state import Checkpoint
from holdfast.interpreter.results import Saved
from holdfast.interpreter.workspace.manifest import Manifest, Manifests, name_of
from holdfast.interpreter.workspace.volumes import MEMORY, volume_of

_SUFFIX: Final = ".state"


@dataclass(slots=True)
class Sessions:
    """Those of one user in one workspace, as one interpreter sees them."""

    workspace: str
    user: str
    revision: int = 0
    """Of the session that was saved or loaded last: the next one is made from it."""

    async def save(
        self, context: Context, session: str, about: Mapping[str, Any], *, now: Callable[[], int] = now_ms
    ) -> Checkpoint:
        """Raises `ManifestConflict` where somebody else has saved since."""
        box = context.kernels.box
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
                await _remove(box, _state_of(before))
        return saved

    async def load(self, context: Context, session: str) -> tuple[Manifest, Saved]:
        """Replace all that the context has by what was saved last, never merge."""
        manifest = await self._manifests(context.kernels.box).read(session)
        if manifest is None:
            raise InvalidInterpreter(
                f"there is no session {session} of user {self.user} in workspace {self.workspace}",
                hint="save one first: await interpreter.save_session()",
            )
        loaded = await state.load(context, _state_of(manifest))
        self.revision = manifest.revision
        return manifest, loaded

    def _manifests(self, box: Box) -> Manifests:
        if volume_of(box.spec.volumes) is None:
            raise InvalidInterpreter(
                "a session is kept on a volume, and this interpreter has none",
                hint="give the interpreter a workspace or a volume",
            )
        return Manifests(box, workspace=self.workspace, user=self.user)


def _prefix(session: str) -> str:
    return f"{MEMORY}/buffers/session-{name_of(session, 'session')}-"


def _state_of(manifest: Manifest) -> str:
    """The file of a manifest: one of the session's own, whatever the manifest says. It lies where code could write."""
    path = Checkpoint.from_json(manifest.content.get("state")).path or ""
    prefix = _prefix(manifest.session)
    inner = path.removeprefix(prefix).removesuffix(_SUFFIX)
    if not path.startswith(prefix) or not path.endswith(_SUFFIX) or not inner.isalnum():
        raise InvalidInterpreter(f"session {manifest.session} does not say where its state is", hint="save it again")
    return path


async def _remove(box: Box, path: str | None) -> None:
    if path is not None:
        with suppress(BoxError):
            await box.files.delete(path)
