"""A counterpart of the Sprites API, for tests without the cloud. Its sprites are real local boxes.

It speaks the published HTTP and WebSocket API, so the vendor's SDKs work with it unchanged:

    with SpritesCounterpart(tmp_path) as sprites:
        client = SpritesClient(sprites.token, base_url=sprites.url)

`faults` makes it misbehave as a cloud does.
"""

from __future__ import annotations

from holdfast.testing.sprites.counterpart import SpritesCounterpart
from holdfast.testing.sprites.faults import Faults

__all__ = ["Faults", "SpritesCounterpart"]
