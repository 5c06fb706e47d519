"""REST: the models that agents use. Keys are never returned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from holdfast.api.model.models import (
    Api,
    Complete,
    ModelAnswer,
    ModelChange,
    ModelId,
    ModelKey,
    ModelRecord,
    ModelRecordList,
    ModelTrial,
)
from holdfast.egress.models import InvalidModel, Model, Models, Probe, ask, probe
from holdfast.server.routes.requests import BOX_ERRORS, while_connected
from holdfast.server.routes.services import Administrator, Services, Use, UseModels

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["models"])


@router.get("/models")
async def list_models(models: UseModels) -> ModelRecordList:
    """List models, those that are ready first. Built-in providers are listed even without a key."""
    return ModelRecordList(models=tuple(map(_record, models.all())))


@router.get("/models/{name}")
async def get_model(name: ModelKey, models: UseModels) -> ModelRecord:
    """Get a model."""
    return _record(models.get(name))


@router.put("/models/{name}")
async def put_model(name: ModelKey, change: ModelChange, models: UseModels) -> ModelRecord:
    """Add a model, or change one."""
    return _record(
        await models.put(
            name,
            apis=change.apis,
            base_url=change.base_url,
            key=change.key,
            model=change.model,
            context_window=change.context_window,
            max_tokens=change.max_tokens,
        )
    )


@router.delete("/models/{name}", status_code=204)
async def remove_model(name: ModelKey, models: UseModels) -> None:
    """Remove a model and its key. Runs can no longer use it."""
    await models.remove(name)


@router.post("/models/{name}/test")
async def try_model(
    name: ModelKey,
    services: Use,
    models: UseModels,
    _: Administrator,
    model: Annotated[ModelId | None, Query(description="Another model than the default.")] = None,
    api: Annotated[Api | None, Query(description="API to use. Default: the best that the model speaks.")] = None,
) -> ModelTrial:
    """Ask a model a short question, over the same path that agents use."""
    choice = models.resolve(name if model is None else f"{name}/{model}")
    spoken = choice.apis[0] if api is None else choice.spoken_by((api,))
    if spoken is None:
        raise InvalidModel(f"{name} does not speak {api}", hint=f"it speaks {', '.join(choice.apis)}")
    return _trial(await probe(await services.gateway.get(), choice, spoken))


@router.post("/completions")
async def complete(wanted: Complete, request: Request, services: Use, models: UseModels) -> ModelAnswer:
    """Ask a model, over the same path that agents use. Cancelled when the client leaves."""
    return await while_connected(request, completion_of(services, models, wanted, run="completion"))


async def completion_of(services: Services, models: Models, wanted: Complete, *, run: str) -> ModelAnswer:
    """Return the answer of a model. `run` names the caller in the gateway's statistics."""
    choice = models.resolve(wanted.model)
    completion = await ask(
        await services.gateway.get(),
        choice,
        [each.to_json() for each in wanted.messages],
        run=run,
        timeout=wanted.timeout_seconds,
    )
    return ModelAnswer(
        text=completion.text,
        model=str(choice),
        input_tokens=completion.input_tokens,
        output_tokens=completion.output_tokens,
        cost=completion.cost,
        is_cut=completion.is_cut,
    )


def _record(row: Model) -> ModelRecord:
    return ModelRecord(
        name=row.name,
        endpoints=dict(row.endpoints),
        model=row.model or None,
        context_window=row.context_window,
        max_tokens=row.max_tokens,
        built_in=row.built_in,
        has_key=row.has_key,
        is_ready=row.is_ready,
    )


def _trial(result: Probe) -> ModelTrial:
    return ModelTrial(
        model=result.model,
        api=result.api,
        ok=result.ok,
        status=result.status,
        milliseconds=result.milliseconds,
        text=result.text,
        hint=result.hint,
    )
