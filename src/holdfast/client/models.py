"""The models that agents of a server use: add, list, try and remove them. All of it needs an API key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.client.connection import ServerConnection, encode_json
from holdfast.model_apis import Api

COMPLETIONS_AT_ONCE: Final = 64
"""Completions of one client that are under way at once. Others wait for their turn."""
_TRY_SECONDS: Final = 90.0
_MORE_SECONDS: Final = 30.0
"""That the server may take beside the model."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A provider, or a server of one's own, under a name. Its key is not told."""

    name: str
    endpoints: Mapping[Api, str]
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
    def from_json(cls, value: dict[str, Any]) -> ModelRecord:
        return cls(
            value["name"],
            {Api(api): url for api, url in value["endpoints"].items()},
            value["model"],
            value["contextWindow"],
            value["maxTokens"],
            value["builtIn"],
            value["hasKey"],
            value["isReady"],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "endpoints": {api.value: url for api, url in self.endpoints.items()},
            "model": self.model,
            "contextWindow": self.context_window,
            "maxTokens": self.max_tokens,
            "builtIn": self.built_in,
            "hasKey": self.has_key,
            "isReady": self.is_ready,
        }


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """What came of one small question to a model."""

    model: str
    """`NAME/MODEL`."""
    api: Api
    ok: bool
    status: int
    """Of the provider's answer; 0 where none came."""
    milliseconds: int
    text: str
    """What the model said, or what was wrong."""
    hint: str | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelTrial:
        names = ("ok", "status", "milliseconds", "text", "hint")
        return cls(value["model"], Api(value["api"]), *(value[name] for name in names))

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "api": self.api.value,
            "ok": self.ok,
            "status": self.status,
            "milliseconds": self.milliseconds,
            "text": self.text,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model answered."""

    text: str
    model: str
    """`NAME/MODEL`."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """In dollars, where the provider says."""
    is_cut: bool
    """It reached the most that it may say."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelAnswer:
        names = ("text", "model", "inputTokens", "outputTokens", "cost", "isCut")
        return cls(*(value[name] for name in names))


class ModelStore:
    """All models of one server: `client.models`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._turns = asyncio.Semaphore(COMPLETIONS_AT_ONCE)

    async def list(self) -> list[ModelRecord]:
        """Those that can be used first."""
        answer = await self._connection.ask("GET", "/v1/models")
        return answer.read(lambda value: [ModelRecord.from_json(each) for each in value["models"]])

    async def get(self, name: str) -> ModelRecord:
        return (await self._connection.ask("GET", _path(name))).read(ModelRecord.from_json)

    async def add(
        self,
        name: str,
        *,
        apis: Sequence[Api] = (),
        base_url: str | None = None,
        key: str | None = None,
        model: str | None = None,
        context_window: int | None = None,
        max_tokens: int | None = None,
    ) -> ModelRecord:
        """Add a model, or change one: what is left out stays. For a provider that is built in, a key is enough."""
        given = {
            "apis": list(apis),
            "baseUrl": base_url,
            "key": key,
            "model": model,
            "contextWindow": context_window,
            "maxTokens": max_tokens,
        }
        body = encode_json({field: value for field, value in given.items() if value is not None})
        return (await self._connection.ask("PUT", _path(name), body=body)).read(ModelRecord.from_json)

    async def remove(self, name: str) -> None:
        """Forget a model and its key."""
        try:
            await self._connection.ask("DELETE", _path(name))
        except NotFound as error:
            if not error.repeated:
                raise

    async def test(self, name: str, *, model: str | None = None, api: Api | None = None) -> ModelTrial:
        """Ask it one small question, from the server, by the way that agents go."""
        wanted = (("model", model), ("api", None if api is None else api.value))
        parameters = [(field, value) for field, value in wanted if value is not None]
        path = f"{_path(name)}/test"
        answer = await self._connection.ask("POST", path, parameters=parameters, repeatable=False, timeout=_TRY_SECONDS)
        return answer.read(ModelTrial.from_json)

    async def complete(
        self, messages: Sequence[Mapping[str, str]], *, model: str | None = None, timeout: float = 60.0
    ) -> ModelAnswer:
        """Ask a model something, from the server: `role` and `content` of each message. `model` is `NAME` or
        `NAME/MODEL`, or the only one there is. At most 64 are asked at once; others wait for their turn."""
        wanted = {"messages": [dict(each) for each in messages], "timeoutSeconds": timeout}
        body = encode_json(wanted if model is None else {**wanted, "model": model})
        async with self._turns:
            answer = await self._connection.ask(
                "POST", "/v1/completions", body=body, repeatable=False, timeout=timeout + _MORE_SECONDS
            )
        return answer.read(ModelAnswer.from_json)


def _path(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}"
