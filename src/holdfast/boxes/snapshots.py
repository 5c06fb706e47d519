"""The files of a box at one moment. Defined in `holdfast.api`, which server and client share."""

from holdfast.api.snapshots import Holding as Holding
from holdfast.api.snapshots import Snapshot as Snapshot
