"""A box's files at one moment. Defined where server and client share it."""

from holdfast.api.snapshots import Holding as Holding
from holdfast.api.snapshots import Snapshot as Snapshot
