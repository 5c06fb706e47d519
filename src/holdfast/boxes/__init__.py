"""Boxes: the contract of providers and of boxes, and everything above it that is the same for all of them.

`Provider` makes and finds boxes, `Box` is a machine, `BoxSpec` is what it is asked to be. What a particular kind of box
needs is in `holdfast.providers`.
"""

from holdfast.boxes.box import Box, BoxInfo, Deleted, Liveness, Metrics, Power, Preview, Step
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.files import FileInfo, FileKind, Files, Match, Replaced
from holdfast.boxes.images import Image, ImageConfig, ImageStore
from holdfast.boxes.labels import Owner
from holdfast.boxes.network_policy import Egress, Network, NetworkPolicy, Rule, Traffic
from holdfast.boxes.process import (
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
from holdfast.boxes.provider import Provider, Swept, Volume
from holdfast.boxes.snapshots import Holding, Snapshot
from holdfast.boxes.spec import BoxSpec, HostMount, Lifetime, OnIdle, VolumeMount

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
