"""The models of a server: built-in and added ones, and their keys."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from holdfast.api.errors.models import InvalidModel, ModelKeyMissing, ModelNotFound
from holdfast.api.ids import now_ms
from holdfast.api.model.models import Api
from holdfast.egress.models.catalog import PROVIDERS, SIZES, Size
from holdfast.egress.models.model import (
    DEFAULT_CONTEXT,
    DEFAULT_MAX_TOKENS,
    Model,
    ModelChoice,
    ModelRow,
    ModelStore,
    check_secrecy,
    checked_base_url,
    checked_id,
    checked_key,
    checked_name,
    checked_tokens,
)
from holdfast.encryption import CannotDecrypt, Cipher

_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL and the key for a request."""

    url: str
    key: str | None = field(repr=False)


class Models:
    """All models, in a store and in memory. `async with` loads them.

    Keys are encrypted in both. One is decrypted only while a request needs it.
    """

    def __init__(self, store: ModelStore, secret: bytes, *, clock: Callable[[], int] = now_ms) -> None:
        """`secret` has 32 bytes and is used only for this."""
        self._store = store
        self._cipher = Cipher(secret)
        self._clock = clock
        self._rows: dict[str, ModelRow] = {}
        self._revisions: Counter[str] = Counter()
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._rows = {row.name: row for row in await self._store.load_all()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which its owner closes."""

    # --- looking ---

    def all(self) -> list[Model]:
        """Returns usable models first, then providers that need a key, each sorted by name."""
        models = [self.get(name) for name in {*self._rows, *PROVIDERS}]
        return sorted(models, key=lambda model: (not model.is_ready, model.name))

    def get(self, name: str) -> Model:
        """Raises `ModelNotFound`."""
        row, provider = self._rows.get(name), PROVIDERS.get(name)
        if row is None:
            if provider is None:
                ready = ", ".join(model.name for model in self.all() if model.is_ready)
                raise ModelNotFound(
                    f"there is no model {name[:80]!r}",
                    hint=f"use one of {ready}" if ready else "add one: holdfast model add NAME",
                )
            return provider
        if row.endpoints is not None:
            endpoints: Mapping[str, str] = json.loads(row.endpoints)
            model = Model(name, {Api(api): url for api, url in endpoints.items()})
        elif provider is not None:
            model = provider
        else:
            raise ModelNotFound(f"{name} is no longer built in", hint=f"holdfast model add {name} --base-url URL")
        size = SIZES.get(row.model or "", Size(model.context_window, model.max_tokens))
        return replace(
            model,
            model=row.model or model.model,
            context_window=row.context_window or size.context_window,
            max_tokens=row.max_tokens or size.max_tokens,
            has_key=row.key is not None,
        )

    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        """Returns the APIs of the model that `NAME` or `NAME/MODEL` means, usable or not. Raises `ModelNotFound`."""
        return self.get(wanted.partition("/")[0]).apis

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        """Returns the model that `NAME` or `NAME/MODEL` means, or for None the only usable one.

        Raises `ModelNotFound`, `ModelKeyMissing`, or `InvalidModel` if that is ambiguous.
        """
        if wanted is None:
            wanted = self._only()
        name, _, id = wanted.partition("/")
        model = self.get(name)
        if not model.is_ready:
            raise ModelKeyMissing(f"{name} needs a key", hint=f"holdfast model add {name} --key-stdin < FILE")
        chosen = checked_id(id or model.model) if id or model.model else None
        if chosen is None:
            raise InvalidModel(
                f"{name} has no default model",
                hint=f"name one: --model {name}/MODEL; or set a default: holdfast model add {name} --model MODEL",
            )
        size = Size(model.context_window, model.max_tokens)
        if chosen != model.model:
            size = SIZES.get(chosen, Size(DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS) if model.built_in else size)
        return ModelChoice(name, chosen, model.apis, size.context_window, size.max_tokens)

    def endpoint(self, name: str, api: Api) -> Endpoint | None:
        """Returns the endpoint of a model for an API, or None if it does not have that API.

        Raises `ModelNotFound` or `ModelKeyMissing`.
        """
        model = self.get(name)
        url = model.endpoints.get(api)
        if url is None:
            return None
        row = self._rows.get(name)
        if row is None or row.key is None:
            if model.key_wanted:
                raise ModelKeyMissing(f"{name} needs a key", hint=f"holdfast model add {name} --key-stdin < FILE")
            return Endpoint(url, None)
        try:
            return Endpoint(url, self._cipher.decrypt(row.key, row.purpose))
        except CannotDecrypt as error:
            hint = f"give it again: holdfast model add {name} --key-stdin < FILE"
            raise ModelKeyMissing(f"the key of {name} cannot be read: {error}", hint=hint) from None

    def revision(self, name: str) -> int:
        """Returns a number that changes when the model is changed. Failures of the old one do not count then."""
        return self._revisions[name]

    def _only(self) -> str:
        ready = [model.name for model in self.all() if model.is_ready]
        if not ready:
            raise ModelKeyMissing(
                "there is no model yet", hint="holdfast model add NAME; holdfast model list shows some"
            )
        if len(ready) > 1:
            raise InvalidModel(f"there are {len(ready)} models", hint=f"choose one: {', '.join(ready)}")
        return ready[0]

    # --- changing ---

    async def put(
        self,
        name: str,
        *,
        apis: Iterable[Api] = (),
        base_url: str | None = None,
        key: str | None = None,
        model: str | None = None,
        context_window: int | None = None,
        max_tokens: int | None = None,
    ) -> Model:
        """Add or change a model. Omitted values stay, or come from the catalog if the model is new.

        A key stays only while the endpoints stay.
        """
        async with self._changing:
            before = self._rows.get(checked_name(name))
            if before is None and len(self._rows) >= _MOST:
                raise InvalidModel(f"there are {_MOST} models already", hint="remove models that are not needed")
            endpoints = self._endpoints(name, tuple(dict.fromkeys(apis)), base_url)
            row = replace(before or ModelRow(name), endpoints=endpoints, key=None)
            if model is not None:
                row = replace(row, model=checked_id(model))
            if context_window is not None:
                row = replace(row, context_window=checked_tokens(context_window))
            if max_tokens is not None:
                row = replace(row, max_tokens=checked_tokens(max_tokens))
            if key is not None:
                for url in json.loads(endpoints).values() if endpoints is not None else ():
                    check_secrecy(url)
                row = replace(row, key=self._cipher.encrypt(checked_key(key), row.purpose))
            elif before is not None and before.purpose == row.purpose:
                row = replace(row, key=before.key)
            await self._store.put(row, self._clock())
            self._rows[name] = row
            self._revisions[name] += 1
            return self.get(name)

    async def remove(self, name: str) -> None:
        """Remove a model and its key. Running runs can no longer use it. Raises `ModelNotFound`."""
        async with self._changing:
            if name not in self._rows:
                self.get(name)
                raise ModelNotFound(f"{name} is built in and has no key: there is nothing to remove")
            await self._store.remove(name)
            self._rows.pop(name, None)

    def _endpoints(self, name: str, apis: tuple[Api, ...], base_url: str | None) -> str | None:
        """Returns the endpoints for a row, or None for those of the catalog."""
        before = self._rows.get(name)
        kept = before.endpoints if before is not None else None
        known = json.loads(kept) if kept is not None else None
        if base_url is None:
            if apis and (known is None or set(known) != set(apis)):
                raise InvalidModel("an API needs a base URL", hint="add --base-url URL")
            if known is None and name not in PROVIDERS:
                hint = f"give --api and --base-url, or use a built-in provider: {', '.join(PROVIDERS)}"
                raise InvalidModel(f"{name} is not a built-in provider", hint=hint)
            return kept
        if not apis:
            apis = tuple(map(Api, known)) if known is not None else ()
        if not apis:
            raise InvalidModel(f"the API at {base_url[:200]} is not known", hint=f"--api {' or '.join(Api)}")
        return json.dumps({api.value: checked_base_url(base_url, api) for api in apis})
