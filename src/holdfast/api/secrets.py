"""Secrets: values that boxes use and do not see. No response contains a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.limits import without_nul

MOST_SECRETS: Final = 1000
MOST_BINDINGS: Final = 32
SECRET_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,62}"

SecretName = Annotated[str, Limits(pattern=f"^{SECRET_NAME}$")]
"""The name of a secret, which is also the name of its variable in a box."""
SecretValue = Annotated[
    str,
    Limits(min_length=1, max_length=65_536, check=without_nul, schema={"format": "password", "writeOnly": True}),
]
_Text = Annotated[str, Limits(max_length=300, check=without_nul)]


class Placement(StrEnum):
    """The part of a request that a secret is put into."""

    HEADER = "header"
    QUERY = "query"
    BASIC = "basic"
    """Basic authentication, with the secret as the password."""
    GIT = "git"
    """Basic authentication of git over HTTPS, for certain repositories."""
    PLACEHOLDER = "placeholder"
    """Wherever a header or the query has the placeholder, which is the `name` of the binding."""


class Exposure(StrEnum):
    """How the value itself gets into a box. Programs there can read it, and send it anywhere that the box reaches."""

    ENV = "env"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding(Document):
    """A host that a secret may be sent to, always over TLS, and where it is put."""

    host: _Text
    """`HOST` or `HOST:PORT`. The default port is 443."""
    placement: Placement = Placement.HEADER
    name: _Text = ""
    """The name of the header or of the query parameter, the user of basic authentication, or the placeholder."""
    format: _Text = "{}"
    """What is sent. `{}` stands for the value: `Bearer {}`."""
    repositories: Annotated[tuple[_Text, ...], Limits(max_length=100)] = ()
    """The repositories of a `git` binding, as paths: `acme/app`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord(Document):
    name: str
    bindings: tuple[Binding, ...]
    expose: Exposure | None
    """How boxes get the value itself. None: they do not."""
    placeholder: str
    """What boxes see in the variable of this name, unless the value is exposed."""
    version: int
    """Starts at 1, and grows with each new value. Earlier values are gone."""
    created_at: int
    """UTC milliseconds."""
    changed_at: int
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecordList(Document):
    secrets: tuple[SecretRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSecret(Document):
    """A whole secret. It takes the place of the one of that name."""

    value: SecretValue = field(repr=False)
    """Stored encrypted, and never shown."""
    bindings: Annotated[tuple[Binding, ...], Limits(max_length=MOST_BINDINGS)] = ()
    expose: Exposure | None = None
    placeholder: _Text | None = None
    """Defaults to a text with the name of the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateSecret(Document):
    """A new value for a secret. Its bindings stay."""

    value: SecretValue = field(repr=False)


class SecretAction(StrEnum):
    SET = "set"
    ROTATED = "rotated"
    REMOVED = "removed"
    USED = "used"
    """It was put into a request of a box. Recorded for the first request of a box to a host with each version."""
    EXPOSED = "exposed"
    """The value itself was given to a box."""
    REFUSED = "refused"
    """A box tried to use it in a way that its binding does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretEvent(Document):
    """What happened to a secret, and who did it."""

    at: int
    """UTC milliseconds."""
    action: SecretAction
    version: int
    by: str = ""
    """The user, of a change."""
    box: str = ""
    thread: str = ""
    """The thread that the box belongs to."""
    host: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretEventList(Document):
    events: tuple[SecretEvent, ...]
    """Newest first."""
