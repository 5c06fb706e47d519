"""What a box is, kept in the labels of its sandbox. Its variables are not: they may be secret, and are in the sandbox.

So boxes are found by what Daytona has, even from another home with the same namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.packed_labels import pack, unpack
from holdfast.providers.stored_record import StoredRecord

HOME_LABEL: Final = "holdfast.home"
"""The namespace of the home that the box belongs to."""
BOX_LABEL: Final = "holdfast.box"
_RECORD: Final = "holdfast.record."
_PIECE: Final = 500
_SHOWN: Final = 24
"""Labels of a box that are also labels of its sandbox, so that people can search for them. The record has them all."""


@dataclass(frozen=True, slots=True)
class BoxRecord(StoredRecord):
    id: str
    spec: BoxSpec
    """Without its variables, until `with_env`."""
    labels: Mapping[str, str]
    created_at: int
    snapshot: str | None = None
    """The snapshot that it was restored from."""
    maker: str = ""
    """Random: tells the sandbox that we asked for from one that another process made under the same name."""
    ready: bool = False
    failed: bool = False
    """Its start has failed for good."""
    variables: tuple[str, ...] = ()
    """The names of its variables. The sandbox may have more."""
    home: str = ""
    guest: str = ""
    """The folder of the guest's files."""
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    """The last snapshot of its files."""

    def with_env(self, env: Mapping[str, str]) -> Self:
        """Returns the record with the variables that its sandbox has."""
        known = {name: env[name] for name in self.variables if name in env}
        return replace(self, spec=replace(self.spec, env=known))

    def to_json(self) -> dict[str, Any]:
        document = StoredRecord.to_json(self)
        del document["spec"]["env"]
        return {**document, "variables": sorted({*self.spec.env, *self.variables})}

    def to_labels(self, namespace: str) -> dict[str, str]:
        """Returns the labels of its sandbox."""
        shown = sorted(self.labels.items())[:_SHOWN]
        pieces = enumerate(pack(self.to_text(), _PIECE))
        return {
            **dict(shown),
            HOME_LABEL: namespace,
            BOX_LABEL: self.id,
            **{f"{_RECORD}{number:02d}": piece for number, piece in pieces},
        }

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self | None:
        """Returns the record in the labels of a sandbox, or None if they hold none."""
        names = sorted(name for name in labels if name.startswith(_RECORD))
        text = unpack(labels[name] for name in names)
        return None if not text else cls.from_text(text)
