"""The providers of a server's boxes, and their accounts: add, list, test and remove them. Needs an API key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.api.box.records import Step
from holdfast.api.errors import NotFound, Unreachable, error_from_document
from holdfast.api.providers import (
    AccountChange,
    MachineSetup,
    ProviderRecord,
    ProviderRecordList,
    ProviderTrial,
    SettingValue,
)
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource

OnStep = Callable[[Step], None]


class ProviderStore:
    """All providers of one server: `client.providers`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._providers = Resource(connection, "/v1/providers")

    async def get(self, name: str) -> ProviderRecord:
        return (await self._providers.ask("GET", _path(name))).read(ProviderRecord.from_json)

    async def add(
        self,
        name: str,
        *,
        kind: str | None = None,
        settings: Mapping[str, SettingValue | None] | None = None,
        credential: Mapping[str, str] | None = None,
    ) -> ProviderRecord:
        """Add an account, or change one: what is omitted stays as it is. `kind` defaults to the name.

        `credential` has the settings that the provider declares as secret: `{"sprites_token": …}`. It is stored
        encrypted, and never returned. Other `settings` than before need it again.
        """
        change = AccountChange(kind=kind, settings=dict(settings or {}), credential=dict(credential or {}))
        answer = await self._providers.ask("PUT", _path(name), change.to_request(), timeout=LONG_SECONDS)
        return answer.read(ProviderRecord.from_json)

    async def remove(self, name: str) -> None:
        """Remove an account and its credential. Raises `AccountInUse` while it has boxes."""
        try:
            await self._providers.ask("DELETE", _path(name), timeout=LONG_SECONDS)
        except NotFound as error:
            if not error.repeated:
                raise

    async def test(self, name: str, *, on_step: OnStep | None = None) -> ProviderTrial:
        """Reach a provider, create a box, run a command in it and delete it. `on_step` gets each step when it is done.

        If this is cancelled, the server deletes what was created.
        """
        async with self._providers.exchange("POST", f"{_path(name)}/test", silence=LONG_SECONDS) as response:
            async for text in response.aiter_lines():
                if text and (trial := _tried(json.loads(text), on_step)) is not None:
                    return trial
        raise Unreachable(
            f"{self._providers.url} closed the connection before the test of {name} had ended",
            hint="try again; what was created is deleted",
        )

    async def set_up(
        self,
        name: str,
        machine: str,
        *,
        agents: Sequence[str] = ("pi",),
        environment: Mapping[str, str] | None = None,
        on_step: OnStep | None = None,
    ) -> ProviderTrial:
        """Put agents and variables into a machine of yours at a provider, or into that of a box.

        What you have there is not replaced, and doing it twice changes nothing. `on_step` gets each step when it is
        done.
        """
        wanted = MachineSetup(machine=machine, agents=tuple(agents), environment=dict(environment or {}))
        async with self._providers.exchange(
            "POST",
            f"{_path(name)}/setup",
            body=json.dumps(wanted.to_request()).encode(),
            media_type="application/json",
            silence=LONG_SECONDS,
        ) as response:
            async for text in response.aiter_lines():
                if text and (trial := _tried(json.loads(text), on_step)) is not None:
                    return trial
        raise Unreachable(
            f"{self._providers.url} closed the connection before the setup of {machine} had ended",
            hint="run it again: it goes on where it was",
        )

    # Last, so that `list` means the builtin everywhere above.
    async def list(self) -> list[ProviderRecord]:
        """Returns all providers, usable ones first."""
        answer = await self._providers.ask("GET")
        return list(answer.read(ProviderRecordList.from_json).providers)


def _path(name: str) -> str:
    return f"/{quote(name, safe='')}"


def _tried(line: dict[str, Any], on_step: OnStep | None) -> ProviderTrial | None:
    """Pass one line of a test on to `on_step`. Returns the trial if this is the last line."""
    match line["type"]:
        case "error":
            raise error_from_document(line["error"])
        case "trial":
            return ProviderTrial.from_json(line["trial"])
        case "step" if on_step is not None:
            on_step(Step.from_json(line["step"]))
    return None
