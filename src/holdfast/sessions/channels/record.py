"""What a session's thread says about its channels. Pure. Only entries with the server's seal count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.tools.channels import ANY_CHAT, ChannelType

PREFIX: Final = "signal.channel."
CONNECTED: Final = "signal.channel.connected"
DISCONNECTED: Final = "signal.channel.disconnected"
SEEN: Final = "signal.channel.seen"
"""Somebody has written in a chat, where all chats are allowed. From here on the session may answer there."""
SENT: Final = "signal.channel.sent"
"""An answer was sent. A call with the same key does not send it again."""
MOST_SEEN: Final = 1_000
MOST_SENT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Channel:
    type: ChannelType
    token: str
    """The name of a secret."""
    signing: str | None
    chats: frozenset[str]
    seen: frozenset[str] = frozenset()
    nonce: str = ""
    """Chosen when it was connected. The secret of its webhook follows from it."""

    def admits(self, chat: str) -> bool:
        """Whether messages from this chat become prompts."""
        return chat in self.chats or ANY_CHAT in self.chats

    def answers(self, chat: str) -> bool:
        """Whether the session may write there."""
        return chat in self.chats or chat in self.seen

    @property
    def known(self) -> list[str]:
        return sorted((self.chats | self.seen) - {ANY_CHAT})


@dataclass(frozen=True, slots=True)
class Channels:
    by_type: Mapping[ChannelType, Channel] = field(default_factory=dict)
    sent: tuple[str, ...] = ()
    """Keys of the latest answers."""


def fold(channels: Channels, entry: Mapping[str, Any]) -> Channels:
    """Returns the channels after an entry of this server. One that cannot be understood changes nothing."""
    payload = entry["payload"]
    try:
        kind = ChannelType(payload["channel"])
        others = {name: each for name, each in channels.by_type.items() if name is not kind}
        if payload["type"] == CONNECTED:
            signing = payload.get("signing")
            chats = frozenset(map(str, payload["chats"]))
            nonce = str(payload.get("nonce", ""))
            connected = Channel(kind, str(payload["token"]), signing, chats, nonce=nonce)
            return replace(channels, by_type={**others, kind: connected})
        if payload["type"] == DISCONNECTED:
            return replace(channels, by_type=others)
        if payload["type"] == SENT:
            return replace(channels, sent=(*channels.sent, str(payload["key"]))[-MOST_SENT:])
        channel = channels.by_type[kind]
        if payload["type"] == SEEN and len(channel.seen) < MOST_SEEN:
            seen = channel.seen | {str(payload["chat"])}
            return replace(channels, by_type={**others, kind: replace(channel, seen=seen)})
    except (LookupError, TypeError, ValueError):
        pass  # written by another version
    return channels
