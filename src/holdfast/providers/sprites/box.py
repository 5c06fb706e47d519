"""A box that is a sprite. Its guest is reached over a stream, and the Sprites API controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.api.box.box import BoxInfo, Wake
from holdfast.providers.sprites.guest_setup import MARK
from holdfast.providers.sprites.idle_streams import Quiet
from holdfast.providers.stream import CloudBox, CloudLifecycle, StreamEgress, StreamGuestClient


class SpriteLifecycle(CloudLifecycle, Protocol):
    def quiet(self, id: str) -> Quiet | None:
        """Returns what is known of a box whose stream is closed because nothing happens in it."""


class SpriteBox(CloudBox):
    def __init__(
        self,
        info: BoxInfo,
        lifecycle: SpriteLifecycle,
        guest: StreamGuestClient,
        egress: StreamEgress,
        wake: Wake | None = None,
        *,
        environment: Mapping[str, str],
    ) -> None:
        whole = {"LANG": "C.UTF-8", "TERM": "dumb", **environment, "HOLDFAST_BOX": info.id, MARK: info.id}
        super().__init__(info, lifecycle, guest, egress, wake, environment=whole)
        self._sprites = lifecycle

    async def _ask_activity(self) -> Mapping[str, Any]:
        quiet = self._sprites.quiet(self.id)
        return await super()._ask_activity() if quiet is None else quiet.activity_now()
