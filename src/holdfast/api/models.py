"""Models: providers and servers of one's own under names, and completions. Keys go in, and never come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import Secret
from holdfast.api.model_apis import Api

ModelKey = Annotated[str, Limits(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""What a model is called here."""
ModelId = Annotated[str, Limits(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
"""What its provider calls it."""
Tokens = Annotated[int, Limits(ge=1, le=100_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord(Document):
    """A provider, or a server of one's own, under a name."""

    name: str
    endpoints: dict[Api, str]
    """Base URL by API, the best API first."""
    model: str | None
    """Which of its models is meant if nobody says."""
    context_window: int
    max_tokens: int
    built_in: bool
    has_key: bool
    is_ready: bool
    """It has a key, or wants none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecordList(Document):
    models: tuple[ModelRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange(Document):
    """What is left out stays as it is; for a provider that is built in, a key is enough."""

    apis: Annotated[tuple[Api, ...], Limits(max_length=len(Api))] = ()
    """All spoken at `baseUrl`, the best first."""
    base_url: Annotated[str, Limits(min_length=1, max_length=2000)] | None = None
    """As clients take it: OpenAI's with the version, Anthropic's without. A key does not move to another one."""
    key: Secret | None = field(default=None, repr=False)
    """Kept sealed, and never shown."""
    model: ModelId | None = None
    context_window: Tokens | None = None
    max_tokens: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrial(Document):
    """What came of one small question to a model."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    ok: bool
    status: int
    """Of the provider's answer; 0 if none came."""
    milliseconds: int
    text: str
    """What the model said, or what was wrong."""
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Document):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Limits(max_length=16_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(Document):
    model: Annotated[str, Limits(min_length=1, max_length=264)] | None = None
    """`NAME` or `NAME/MODEL`; the only one, if it is left out."""
    messages: Annotated[tuple[Message, ...], Limits(min_length=1, max_length=1000)]
    timeout_seconds: Annotated[float, Limits(gt=0, le=3600, allow_inf_nan=False)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer(Document):
    """What a model answered."""

    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """In dollars, if the provider says."""
    is_cut: bool
    """The answer reached its limit of tokens."""
