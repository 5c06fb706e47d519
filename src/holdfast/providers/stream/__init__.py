"""The common part of providers whose guests are reached over one byte stream. Not a provider itself.

A provider supplies a `Dial`, which starts `bridge_command` in a box and returns a `Transport`, and a `Lifecycle`, which
starts, stops and deletes boxes. It has one `StreamGuestClient` for each box, which all handles share, and closes these
when it closes.
"""

from __future__ import annotations

from holdfast.providers.stream.box import CloudBox, CloudLifecycle, StreamBox
from holdfast.providers.stream.connections import BoxConnection, BoxConnections
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.files import StreamFiles
from holdfast.providers.stream.guest import MODULES, RUN, bridge_command, guest_command, guest_files
from holdfast.providers.stream.guest_client import StreamGuestClient, Verdict
from holdfast.providers.stream.process import StreamProcesses
from holdfast.providers.stream.stream_egress import StreamEgress
from holdfast.providers.stream.transport import Dial, PipeTransport, Transport

__all__ = [
    "MODULES",
    "RUN",
    "BoxConnection",
    "BoxConnections",
    "CloudBox",
    "CloudLifecycle",
    "Dial",
    "PipeTransport",
    "StreamBox",
    "StreamEgress",
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
