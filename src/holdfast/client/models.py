"""The models that agents of a server use: add, list, try and remove them. All of it needs an API key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.api.model_apis import Api
from holdfast.api.models import ModelAnswer, ModelChange, ModelRecord, ModelRecordList, ModelTrial
from holdfast.client.completions import Completions
from holdfast.client.connection import ServerConnection, encode_json, not_understood

_TRY_SECONDS: Final = 90.0
_MORE_SECONDS: Final = 30.0
"""That the server may take beside the model."""


class ModelStore:
    """All models of one server: `client.models`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._completions = Completions(connection)

    async def list(self) -> list[ModelRecord]:
        """Those that can be used first."""
        answer = await self._connection.ask("GET", "/v1/models")
        return list(answer.read(ModelRecordList.from_json).models)

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
        change = ModelChange(
            apis=tuple(apis),
            base_url=base_url,
            key=key,
            model=model,
            context_window=context_window,
            max_tokens=max_tokens,
        )
        return (await self._connection.ask("PUT", _path(name), body=encode_json(change.given()))).read(
            ModelRecord.from_json
        )

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
        `NAME/MODEL`, or the only one there is."""
        wanted = {"messages": [dict(each) for each in messages], "timeoutSeconds": timeout}
        told = await self._completions.ask(
            wanted if model is None else {**wanted, "model": model}, timeout=timeout + _MORE_SECONDS
        )
        try:
            return ModelAnswer.from_json(told)
        except (LookupError, TypeError) as error:
            raise not_understood(f"the answer cannot be read: {str(told)[:80]!r}") from error

    async def aclose(self) -> None:
        """Let go of the connection for completions; the client's own `aclose` does."""
        await self._completions.close()


def _path(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}"
