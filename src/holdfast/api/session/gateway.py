"""The gateway of a session: links and members, who may do what, and tunnels to ports of its box."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.limits import MAX_TOKEN_SECONDS

LINK_SECONDS: Final = 600
"""How long a link can be opened, by default. Who has opened it can stay as long as they use it."""
MAX_TUNNELS: Final = 64
"""Of one session."""
MAX_MEMBERS: Final = 256
"""Of one session."""
EDITOR_PORT: Final = 8765
DESKTOP_PORT: Final = 6080
"""Where the programs of a workstation listen in the box, and where the gateway looks for them."""

SessionId = Annotated[str, Limits(pattern=r"^[a-z]-[0-9a-z]{1,40}$")]
"""The id of a session, or of a thread, whose box is then reached."""
TunnelName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
TunnelPort = Annotated[int, Limits(ge=1, le=65535, strict=True)]
Subject = Annotated[str, Limits(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Who somebody is, such as `ada` or `ada@example.com`."""
LinkSeconds = Annotated[int, Limits(ge=1, le=MAX_TOKEN_SECONDS)]


class Role(StrEnum):
    """What somebody may do in a session."""

    OWNER = "owner"
    COLLABORATOR = "collaborator"
    VIEWER = "viewer"
    """Watches terminals and reads pages of tunnels."""


class TunnelProtocol(StrEnum):
    """What a tunnelled program speaks. All of them are forwarded in the same way: it is for people and agents."""

    HTTP = "http"
    WS = "ws"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTunnel(Document):
    name: TunnelName
    port: TunnelPort
    protocol: TunnelProtocol = TunnelProtocol.HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel(Document):
    """A port of the session's box that people reach by a name."""

    name: str
    port: int
    protocol: TunnelProtocol
    path: str
    """On the session's own origin, which leads a browser to `url`."""
    url: str | None = None
    """The origin of the tunnel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelList(Document):
    tunnels: tuple[Tunnel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Document):
    subject: Subject
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberList(Document):
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLink(Document):
    """A link for somebody. With a role, they become a member with that role; otherwise they must be one already."""

    subject: Subject | None = None
    """The caller, if it is omitted."""
    role: Role | None = None
    seconds: LinkSeconds = LINK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Document):
    """Opens a session in a browser. Whoever has it can open it until it expires."""

    url: str
    token: str
    """For programs: `Authorization: Bearer …`."""
    subject: str
    role: Role
    expires_at: int
    """UTC milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation(Document):
    """What no longer opens a session: one credential, or, without one, all tokens and cookies of the session."""

    credential: Annotated[str, Limits(min_length=1, max_length=4096, schema={"format": "password"})] | None = None
    """A token or the value of a cookie."""
