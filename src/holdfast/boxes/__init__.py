"""Boxes: the contract that providers and boxes implement, and the code that works with any provider.

A `Provider` creates and finds boxes. A `Box` is a sandboxed machine. A `BoxSpec` describes the box that a caller wants.
The providers themselves are in `holdfast.providers`.
"""

from holdfast.api.box.box import Box, BoxInfo, Deleted, Liveness, Metrics, Power
from holdfast.api.box.files import FileInfo, FileKind, Files, Match, Replaced
from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.api.box.process import (
    Channel,
    Chunk,
    Completed,
    Connection,
    Process,
    ProcessInfo,
    ProcessState,
    Sink,
    Stream,
)
from holdfast.api.box.records import Owner, Preview, Step
from holdfast.api.box.snapshots import Holding, Snapshot, Volume
from holdfast.api.box.spec import BoxSpec, HostMount, Lifetime, OnIdle, VolumeMount
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.images import ImageStore
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.boxes.provider import Provider, Swept

__all__ = [
    "Box",
    "BoxInfo",
    "BoxSpec",
    "Capability",
    "Channel",
    "Chunk",
    "Completed",
    "Connection",
    "Deleted",
    "Egress",
    "FileInfo",
    "FileKind",
    "Files",
    "Holding",
    "HostMount",
    "Image",
    "ImageConfig",
    "ImageStore",
    "Lifetime",
    "Liveness",
    "Match",
    "Metrics",
    "Network",
    "NetworkPolicy",
    "OnIdle",
    "Owner",
    "Power",
    "Preview",
    "Process",
    "ProcessInfo",
    "ProcessState",
    "Provider",
    "Replaced",
    "Rule",
    "Sink",
    "Snapshot",
    "Step",
    "Stream",
    "Swept",
    "Traffic",
    "Volume",
    "VolumeMount",
]
