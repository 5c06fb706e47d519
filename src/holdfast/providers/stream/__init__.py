"""Boxes whose guest is reached over one byte stream: what every provider of such boxes builds on.

A provider gives a `Dial`, which starts `bridge_command` in its box and returns the bytes there and back as a
`Transport`, and is the `Keeper` of its boxes: their life is up to it. It keeps one `StreamGuestClient` per box, which
handles on that box share, and closes it with itself. Not a provider by itself.
"""

from __future__ import annotations

from holdfast.providers.stream.box import StreamBox
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.files import StreamFiles
from holdfast.providers.stream.guest import MODULES, RUN, bridge_command, guest_command, guest_files
from holdfast.providers.stream.guest_client import StreamGuestClient, Verdict
from holdfast.providers.stream.process import StreamProcesses
from holdfast.providers.stream.transport import Dial, PipeTransport, Transport

__all__ = [
    "MODULES",
    "RUN",
    "Dial",
    "PipeTransport",
    "StreamBox",
    "StreamFiles",
    "StreamGuestClient",
    "StreamProcesses",
    "Transport",
    "Verdict",
    "bridge_command",
    "guest_command",
    "guest_files",
    "serve_egress",
]
