"""What a box is, kept in the labels of its sandbox. Its variables are not: they may be secret, and are in the sandbox.

So boxes are found by what Daytona has, even from another home with the same namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.providers.packed_labels import pack, unpack

HOME_LABEL: Final = "holdfast.home"
"""The namespace of the home that the box belongs to."""
BOX_LABEL: Final = "holdfast.box"
_RECORD: Final = "holdfast.record."
_PIECE: Final = 500
_SHOWN: Final = 24
"""Labels of a box that are also labels of its sandbox, so that people can search for them. The record has them all."""


@dataclass(frozen=True, slots=True)
class BoxRecord:
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

    def to_text(self) -> str:
        spec = self.spec.to_json()
        del spec["env"]
        return json.dumps(
            {
                "id": self.id,
                "spec": spec,
                "labels": dict(self.labels),
                "createdAt": self.created_at,
                "snapshot": self.snapshot,
                "maker": self.maker,
                "ready": self.ready,
                "failed": self.failed,
                "variables": sorted({*self.spec.env, *self.variables}),
                "home": self.home,
                "guest": self.guest,
                "python": self.python,
                "environment": dict(self.environment),
                "parent": self.parent,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Returns None for what is not a record: labels can be changed by anybody."""
        try:
            told = json.loads(text)
            return cls(
                str(told["id"]),
                BoxSpec.from_json(told["spec"]),
                {str(name): str(value) for name, value in told["labels"].items()},
                int(told["createdAt"]),
                None if told["snapshot"] is None else str(told["snapshot"]),
                str(told["maker"]),
                bool(told["ready"]),
                bool(told["failed"]),
                tuple(str(each) for each in told["variables"]),
                str(told["home"]),
                str(told["guest"]),
                str(told["python"]),
                {str(name): str(value) for name, value in told["environment"].items()},
                None if told["parent"] is None else str(told["parent"]),
            )
        except (AttributeError, InvalidSpec, KeyError, TypeError, ValueError):
            return None

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
