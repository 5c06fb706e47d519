"""Models: named providers and own servers, and completions. No response contains a key."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import Secret

ModelKey = Annotated[str, Limits(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""The name of a model in Holdfast."""
ModelId = Annotated[str, Limits(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
"""The name that the provider uses."""
Tokens = Annotated[int, Limits(ge=1, le=100_000_000)]


class Api(StrEnum):
    """How a model is spoken to. One list for those who speak (harnesses) and those who carry (egress)."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


def shared(wanted: Iterable[Api], spoken: Collection[Api]) -> Api | None:
    """What two sides speak with each other: the first API of one that the other speaks, too."""
    return next((api for api in wanted if api in spoken), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord(Document):
    """A named provider or own server."""

    name: str
    endpoints: dict[Api, str]
    """Base URLs by API, preferred API first."""
    model: str | None
    """The default model."""
    context_window: int
    max_tokens: int
    built_in: bool
    has_key: bool
    is_ready: bool
    """Whether it has a key or needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecordList(Document):
    models: tuple[ModelRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange(Document):
    """Omitted fields stay as they are. A built-in provider needs only a key."""

    apis: Annotated[tuple[Api, ...], Limits(max_length=len(Api))] = ()
    """The APIs at `baseUrl`, preferred one first."""
    base_url: Annotated[str, Limits(min_length=1, max_length=2000)] | None = None
    """As clients of the API expect it: OpenAI's with the version, Anthropic's without. A new URL needs a new key."""
    key: Secret | None = field(default=None, repr=False)
    """Stored encrypted, and never shown."""
    model: ModelId | None = None
    context_window: Tokens | None = None
    max_tokens: Tokens | None = None


Dollars = Annotated[float, Limits(ge=0, le=100_000, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrice(Document):
    """What a call costs whose input, cached or not, is longer than `tokens`."""

    tokens: Tokens
    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Document):
    """Dollars for a million tokens. Cached tokens without a price cost as much as other input."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None
    """Of what is kept in the cache for an hour."""
    above: LongPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice(Document):
    model: str
    """`NAME/MODEL`."""
    price: Price
    is_own: bool
    """Whether it was set on this server. Others come with Holdfast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPriceList(Document):
    prices: tuple[ModelPrice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrial(Document):
    """The result of a short test request to a model."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    ok: bool
    status: int
    """The HTTP status of the provider's response, or 0 if there was none."""
    milliseconds: int
    text: str
    """The response of the model, or the problem."""
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Document):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Limits(max_length=16_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(Document):
    model: Annotated[str, Limits(min_length=1, max_length=264)] | None = None
    """`NAME` or `NAME/MODEL`. Defaults to the only model."""
    messages: Annotated[tuple[Message, ...], Limits(min_length=1, max_length=1000)]
    timeout_seconds: Annotated[float, Limits(gt=0, le=3600, allow_inf_nan=False)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer(Document):
    """The response of a model."""

    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """In dollars, if the provider reports it."""
    is_cut: bool
    """Whether the response reached its limit of tokens."""
