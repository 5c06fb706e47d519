"""REST: the models that agents use. Keys go in, and never come out."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, SecretStr, StringConstraints

from holdfast.egress.models import InvalidModel, Models, Probe, ask, probe
from holdfast.egress.models import Model as ModelRow
from holdfast.model_apis import Api
from holdfast.server.routes.box_requests import BOX_ERRORS, while_connected
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Administrator, Services, Use, UseModels

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["models"])

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
ModelId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Tokens = Annotated[int, Field(ge=1, le=100_000_000)]


class ModelRecord(Model):
    """A provider, or a server of one's own, under a name."""

    name: str
    endpoints: dict[Api, str]
    """Base URL by API, the best API first."""
    model: str | None
    """Which of its models is meant where nobody says."""
    context_window: int
    max_tokens: int
    built_in: bool
    has_key: bool
    is_ready: bool
    """It has a key, or wants none."""

    @classmethod
    def of(cls, row: ModelRow) -> ModelRecord:
        return cls(
            name=row.name,
            endpoints=dict(row.endpoints),
            model=row.model or None,
            context_window=row.context_window,
            max_tokens=row.max_tokens,
            built_in=row.built_in,
            has_key=row.has_key,
            is_ready=row.is_ready,
        )


class ModelRecordList(Model):
    models: list[ModelRecord]


class ModelChange(Model):
    """What is left out stays as it is; for a provider that is built in, a key is enough."""

    apis: Annotated[list[Api], Field(max_length=len(Api))] = Field(default_factory=list)
    """All spoken at `baseUrl`, the best first."""
    base_url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    """As clients take it: OpenAI's with the version, Anthropic's without. A key does not move to another one."""
    key: Annotated[SecretStr, Field(min_length=1, max_length=4096)] | None = None
    """Kept sealed, and never shown."""
    model: ModelId | None = None
    context_window: Tokens | None = None
    max_tokens: Tokens | None = None


class ProbeAnswer(Model):
    """What came of one small question."""

    model: str
    api: Api
    ok: bool
    status: int
    """Of the provider's answer; 0 where none came."""
    milliseconds: int
    text: str
    """What the model said, or what was wrong."""
    hint: str | None

    @classmethod
    def of(cls, result: Probe) -> ProbeAnswer:
        return cls(
            model=result.model,
            api=result.api,
            ok=result.ok,
            status=result.status,
            milliseconds=result.milliseconds,
            text=result.text,
            hint=result.hint,
        )


class Message(Model):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, StringConstraints(max_length=16_000_000)]


class Complete(Model):
    model: Annotated[str, StringConstraints(min_length=1, max_length=264)] | None = None
    """`NAME` or `NAME/MODEL`; the only one, where it is left out."""
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    timeout_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60.0


class CompletionModel(Model):
    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """In dollars, where the provider says."""
    is_cut: bool
    """It reached the most that it may say."""


@router.get("/models")
async def list_models(models: UseModels) -> ModelRecordList:
    """Models, those that can be used first. Providers that are built in are listed without a key, too."""
    return ModelRecordList(models=[ModelRecord.of(each) for each in models.all()])


@router.get("/models/{name}")
async def get_model(name: Name, models: UseModels) -> ModelRecord:
    """One model."""
    return ModelRecord.of(models.get(name))


@router.put("/models/{name}")
async def put_model(name: Name, change: ModelChange, models: UseModels) -> ModelRecord:
    """Add a model, or change one."""
    return ModelRecord.of(
        await models.put(
            name,
            apis=change.apis,
            base_url=change.base_url,
            key=None if change.key is None else change.key.get_secret_value(),
            model=change.model,
            context_window=change.context_window,
            max_tokens=change.max_tokens,
        )
    )


@router.delete("/models/{name}", status_code=204)
async def remove_model(name: Name, models: UseModels) -> None:
    """Forget a model and its key. Runs that use it are refused by the gateway from now on."""
    await models.remove(name)


@router.post("/models/{name}/test")
async def try_model(
    name: Name,
    services: Use,
    models: UseModels,
    _: Administrator,
    model: Annotated[ModelId | None, Query(description="One that is not the default.")] = None,
    api: Annotated[Api | None, Query(description="The best that it speaks, unless said.")] = None,
) -> ProbeAnswer:
    """Ask a model one small question, by the way that agents go."""
    choice = models.resolve(name if model is None else f"{name}/{model}")
    spoken = choice.apis[0] if api is None else choice.spoken_by((api,))
    if spoken is None:
        raise InvalidModel(f"{name} does not speak {api}", hint=f"it speaks {', '.join(choice.apis)}")
    return ProbeAnswer.of(await probe(await services.gateway.get(), choice, spoken))


@router.post("/completions")
async def complete(wanted: Complete, request: Request, services: Use, models: UseModels) -> CompletionModel:
    """Ask a model something, by the way that agents go. It is given up when the client leaves."""
    return await while_connected(request, _complete(services, models, wanted))


async def _complete(services: Services, models: Models, wanted: Complete) -> CompletionModel:
    choice = models.resolve(wanted.model)
    said = await ask(
        await services.gateway.get(),
        choice,
        [{"role": each.role, "content": each.content} for each in wanted.messages],
        run="completion",
        timeout=wanted.timeout_seconds,
    )
    return CompletionModel(
        text=said.text,
        model=str(choice),
        input_tokens=said.input_tokens,
        output_tokens=said.output_tokens,
        cost=said.cost,
        is_cut=said.is_cut,
    )
