"""The operations on channels: chats outside of Holdfast that a session takes part in."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.secrets import SECRET_NAME
from holdfast.api.tools.operation import KEY, Field, Operation, ToolGroup, choice, list_of, text

MAX_IMAGE: Final = 6_000_000
"""Characters of an image in base64."""
MOST_CHATS: Final = 100
ANY_CHAT: Final = "*"


class ChannelType(StrEnum):
    TELEGRAM = "telegram"
    SLACK = "slack"


_CHAT: Final = text(64, pattern=r"^(\*|-?[A-Za-z0-9]+)$")
_TYPE: Final = Field("channelType", "Which kind of chat.", choice(*ChannelType), required=True)
_SECRET: Final = text(63, pattern=f"^{SECRET_NAME}$")

OPERATIONS: Final = (
    Operation(
        name="list_channels",
        group=ToolGroup.CHANNELS,
        route="GET /api/channels",
        description="List the chats that this session takes part in, where you can answer.",
        result="channels [{channelType, channelId}]",
        changes=False,
    ),
    Operation(
        name="channel_reply",
        group=ToolGroup.CHANNELS,
        route="POST /api/channel-reply",
        description="Send a message, with or without an image, to a chat that this session takes part in.",
        fields=(
            _TYPE,
            Field("channelId", "The id of the chat.", text(64, pattern=r"^-?[A-Za-z0-9]+$"), required=True),
            Field("message", "The message.", text(4000)),
            Field("imageBase64", "An image, in base64.", text(MAX_IMAGE)),
            Field(
                "imageMimeType",
                "Its type. Default: image/png.",
                choice("image/png", "image/jpeg", "image/gif", "image/webp"),
            ),
            Field("followUp", "Whether more follows: a note for people.", {"type": "boolean"}),
            KEY,
        ),
        result="success",
    ),
    Operation(
        name="connect_channel",
        group=ToolGroup.CHANNELS,
        route="",
        description=(
            "Let a session take part in chats of Telegram or Slack: their messages become its prompts. Returns the"
            " path that the service has to send events to, and for Telegram the secret to register it with."
        ),
        fields=(
            _TYPE,
            Field("token", "The name of the secret with the token of the bot.", _SECRET, required=True),
            Field("signing", "The name of the secret with Slack's signing secret.", _SECRET),
            Field(
                "chats",
                "The ids of the chats that it takes part in. * for all.",
                list_of(_CHAT, MOST_CHATS),
                required=True,
            ),
        ),
        result="channelType, path, secret?",
        for_agents=False,
        people_only=True,
    ),
    Operation(
        name="disconnect_channel",
        group=ToolGroup.CHANNELS,
        route="",
        description="Take a session out of the chats of Telegram or Slack.",
        fields=(_TYPE,),
        result="success",
        for_agents=False,
        people_only=True,
    ),
)
