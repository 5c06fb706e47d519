"""The models that a server's agents use: add, list, test and remove them. Needs an API key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.api.model.models import (
    Api,
    ModelAnswer,
    ModelChange,
    ModelPrice,
    ModelPriceList,
    ModelRecord,
    ModelRecordList,
    ModelTrial,
    Price,
)
from holdfast.client.connection import ServerConnection, encode_json, not_understood
from holdfast.client.model.completions import Completions

_TRY_SECONDS: Final = 90.0
_MORE_SECONDS: Final = 30.0
"""How much longer the server may take than the model."""


class ModelStore:
    """All models of one server: `client.models`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._completions = Completions(connection)

    async def list(self) -> list[ModelRecord]:
        """Returns all models, usable ones first."""
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
        """Add a model, or change one: omitted fields stay as they are. A built-in provider needs only a key."""
        change = ModelChange(
            apis=tuple(apis),
            base_url=base_url,
            key=key,
            model=model,
            context_window=context_window,
            max_tokens=max_tokens,
        )
        return (await self._connection.ask("PUT", _path(name), body=encode_json(change.to_request()))).read(
            ModelRecord.from_json
        )

    async def remove(self, name: str) -> None:
        """Remove a model and its key."""
        try:
            await self._connection.ask("DELETE", _path(name))
        except NotFound as error:
            if not error.repeated:
                raise

    async def test(self, name: str, *, model: str | None = None, api: Api | None = None) -> ModelTrial:
        """Send one small prompt from the server, in the same way as agents do."""
        wanted = (("model", model), ("api", None if api is None else api.value))
        parameters = [(field, value) for field, value in wanted if value is not None]
        path = f"{_path(name)}/test"
        answer = await self._connection.ask("POST", path, parameters=parameters, repeatable=False, timeout=_TRY_SECONDS)
        return answer.read(ModelTrial.from_json)

    async def prices(self) -> Sequence[ModelPrice]:
        """Returns all known prices, sorted by model."""
        return list((await self._connection.ask("GET", "/v1/prices")).read(ModelPriceList.from_json).prices)

    async def set_price(self, model: str, price: Price) -> ModelPrice:
        """Set the price of a model (`NAME/MODEL`), in dollars for a million tokens."""
        answer = await self._connection.ask("PUT", _price_path(model), body=encode_json(price.to_request()))
        return answer.read(ModelPrice.from_json)

    async def remove_price(self, model: str) -> None:
        """Remove a price that was set here."""
        await self._connection.ask("DELETE", _price_path(model), repeatable=False)

    async def complete(
        self, messages: Sequence[Mapping[str, str]], *, model: str | None = None, timeout: float = 60.0
    ) -> ModelAnswer:
        """Ask a model from the server. Each message has `role` and `content`. `model` is `NAME` or `NAME/MODEL`; it may
        be omitted if there is only one.
        """
        wanted = {"messages": [dict(each) for each in messages], "timeoutSeconds": timeout}
        told = await self._completions.ask(
            wanted if model is None else {**wanted, "model": model}, timeout=timeout + _MORE_SECONDS
        )
        try:
            return ModelAnswer.from_json(told)
        except (LookupError, TypeError) as error:
            raise not_understood(f"the response cannot be read: {str(told)[:80]!r}") from error

    async def aclose(self) -> None:
        """Close the connection for completions. `Client.aclose` calls this."""
        await self._completions.close()


def _price_path(model: str) -> str:
    return f"/v1/prices/{quote(model, safe='/')}"


def _path(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}"
