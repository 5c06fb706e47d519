"""How much of an archive is believed before it is taken for a bomb."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.guest.tar import Budget

_MEGABYTE = 1 << 20
_GIGABYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Of one import, all of its layers together."""

    entries: int = 2_000_000
    unpacked: int = 64 * _GIGABYTE
    """Bytes of all files."""
    archive: int = 64 * _GIGABYTE
    """Bytes as they come."""
    ratio: int = 200
    """Bytes that one compressed byte may become, once `unsuspicious` bytes have come out."""
    unsuspicious: int = 512 * _MEGABYTE
    name: int = 4096
    """Bytes of a name, or of where a link points."""
    depth: int = 256
    """Folders in one another."""
    layers: int = 128
    document: int = 8 * _MEGABYTE
    """Bytes of a manifest, an index or a configuration."""
    attributes: int = 64
    """Extended attributes of one file."""
    attribute: int = 4096
    """Bytes of one of them: what common file systems have room for."""
    memory: int = 512 * _MEGABYTE
    """Bytes that a decompressor may ask for."""
    spare: int = 256 * _MEGABYTE
    """Bytes that stay free on disk."""

    def budget(self) -> Budget:
        return Budget(entries=self.entries, size=self.unpacked, name=self.name, depth=self.depth, into="image")
