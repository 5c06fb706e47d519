"""Daytona's secrets over ours: a sandbox has a placeholder, and requests to the hosts of a secret get the value.

A record keeps all about a secret, and its value encrypted. Once a sandbox mounts it, it is also one of the server's
secrets, from where the egress takes it: see docs/secrets.md.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from holdfast.api.errors.secrets import InvalidSecret
from holdfast.api.secrets import MOST_BINDINGS, Binding, Placement
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_found
from holdfast.compat.daytona.models import Body, Mounts
from holdfast.compat.daytona.records import Record, RecordStore
from holdfast.compat.daytona.sandbox_record import timestamp
from holdfast.encryption import CannotDecrypt, Cipher

KIND: Final = "secret"
_MOST: Final = 500
_MOST_MOUNTED: Final = 30
_HOST: Final = re.compile(r"(?:\*\.)?(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")

Value = Annotated[str, Field(min_length=1, max_length=65_536)]
Hosts = Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=MOST_BINDINGS)]
Description = Annotated[str, Field(max_length=1024)]


class NewSecret(Body):
    name: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]*$")]
    value: Value
    description: Description | None = None
    hosts: Hosts | None = None


class ChangedSecret(Body):
    value: Value | None = None
    description: Description | None = None
    hosts: Hosts | None = None


class NewMounts(Body):
    secrets: Mounts


class Vault(Protocol):
    """The secrets of a server, as the egress of boxes knows them."""

    def exists(self, name: str) -> bool: ...

    async def set(
        self, name: str, value: str, bindings: Sequence[Binding], *, placeholder: str | None, by: str
    ) -> object: ...

    async def remove(self, name: str, *, by: str) -> None: ...


class DaytonaSecrets:
    """The secrets of one tenant."""

    def __init__(
        self, boxes: Boxes, records: RecordStore, vault: Callable[[], Awaitable[Vault]], secret: bytes
    ) -> None:
        """`secret` has 32 bytes and is used only for this."""
        self._boxes = boxes
        self._records = records
        self._vault = vault
        self._cipher = Cipher(secret)

    async def all(self) -> list[Record]:
        return await self._records.list(self._boxes.tenant, KIND)

    async def find(self, id_or_name: str) -> Record:
        found = await self._records.find(self._boxes.tenant, KIND, id_or_name)
        if found is None:
            raise not_found(f"Secret {id_or_name[:200]} not found")
        return found

    async def create(self, new: NewSecret) -> Record:
        if await self._records.count(self._boxes.tenant, KIND) >= _MOST:
            raise ApiError(403, f"this server keeps at most {_MOST} Daytona secrets")
        id, now = str(uuid.uuid4()), self._boxes.clock()
        document = {
            "description": new.description,
            "hosts": _checked(new.hosts or []),
            "placeholder": f"dtn_secret_{uuid.uuid4().hex}",
            "value": self._sealed(id, new.value),
        }
        record = Record(KIND, id, new.name, document, now, now)
        if not await self._records.insert(self._boxes.tenant, record):
            raise conflict(f"Secret with name {new.name} already exists")
        return record

    async def change(self, id: str, changes: ChangedSecret, by: str) -> Record:
        record = await self.find(id)
        given: dict[str, Any] = {}
        if changes.value is not None:
            given["value"] = self._sealed(record.id, changes.value)
        if changes.description is not None:
            given["description"] = changes.description
        if changes.hosts is not None:
            given["hosts"] = _checked(changes.hosts)
        if (await self._vault()).exists(_name_in_vault(record)):
            await self._give_to_egress(Record(**{**_fields(record), "document": {**record.document, **given}}), by)
        changed = await self._records.change(
            self._boxes.tenant, KIND, record.id, lambda document: {**document, **given}, self._boxes.clock()
        )
        if changed is None:
            raise not_found(f"Secret {id[:200]} not found")
        return changed

    async def delete(self, id: str, by: str) -> None:
        """Boxes that have it mounted can no longer use it."""
        record = await self.find(id)
        vault = await self._vault()
        if vault.exists(_name_in_vault(record)):
            await vault.remove(_name_in_vault(record), by=by)
        await self._records.remove(self._boxes.tenant, KIND, record.id)

    async def mount(self, wanted: Sequence[Mapping[str, str]], by: str) -> dict[str, dict[str, str]]:
        """Let the egress know secrets. Returns what `SandboxDetails.secrets` keeps of them."""
        names = {variable: name for each in wanted for variable, name in each.items()}
        if len(set(names.values())) > _MOST_MOUNTED:
            raise bad_request(f"a sandbox can mount at most {_MOST_MOUNTED} secrets")
        found = {name: await self.find(name) for name in dict.fromkeys(names.values())}
        vault = await self._vault()
        for record in found.values():
            if not vault.exists(_name_in_vault(record)):  # a later change is passed on as it comes
                await self._give_to_egress(record, by)
        return {
            variable: {
                "name": found[name].name,
                "placeholder": found[name].document["placeholder"],
                "vault": _name_in_vault(found[name]),
            }
            for variable, name in names.items()
        }

    async def _give_to_egress(self, record: Record, by: str) -> None:
        """Store it among the secrets of the server, in place of what is there."""
        hosts, placeholder = record.document["hosts"], record.document["placeholder"]
        if not hosts or any(host.startswith("*.") for host in hosts):
            raise bad_request(
                f"Secret {record.name} cannot be mounted: this server sends secrets only to hosts that are named one by"
                f" one. Update its hosts, for example to api.example.com"
            )
        bindings = [Binding(host=host, placement=Placement.PLACEHOLDER, name=placeholder) for host in hosts]
        value = self._opened(record)
        try:
            await (await self._vault()).set(_name_in_vault(record), value, bindings, placeholder=placeholder, by=by)
        except InvalidSecret as error:
            message = error.message.replace(_name_in_vault(record), record.name)
            raise bad_request(f"Secret {record.name} cannot be mounted: {message}") from None

    def _sealed(self, id: str, value: str) -> str:
        return base64.b64encode(self._cipher.encrypt(value, f"daytona secret {id}")).decode()

    def _opened(self, record: Record) -> str:
        try:
            return self._cipher.decrypt(base64.b64decode(record.document["value"]), f"daytona secret {record.id}")
        except CannotDecrypt as error:
            raise bad_request(f"Secret {record.name} cannot be read: {error}. Give its value again") from None


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("kind", "id", "name", "document", "created_at", "changed_at")}


def _name_in_vault(record: Record) -> str:
    return f"daytona_{record.id.replace('-', '')}"


def _checked(hosts: Sequence[str]) -> list[str]:
    for host in hosts:
        if not _HOST.fullmatch(host) or ".." in host:
            raise bad_request(f"hosts: {host[:100]!r} is not a host name such as api.example.com or *.example.com")
    return list(dict.fromkeys(host.lower() for host in hosts))


def secret_json(record: Record) -> dict[str, Any]:
    """A secret on the wire, without its value."""
    document = record.document
    shown: dict[str, Any] = {
        "id": record.id,
        "name": record.name,
        "placeholder": document["placeholder"],
        "hosts": document["hosts"],
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(record.changed_at),
    }
    return shown if document["description"] is None else {**shown, "description": document["description"]}
