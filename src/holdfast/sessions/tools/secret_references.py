"""Secrets by reference: files and commands in the session's box, with its secrets in place of `hf://NAME`.

A box gets here what it could get anyway: the value of a secret that is exposed to it, and otherwise the placeholder,
which the proxy replaces in requests to the hosts of the secret.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.errors import Conflict, Forbidden, InvalidRequest, Refused
from holdfast.api.errors.boxes import ExecTimeout
from holdfast.api.secrets import SecretRecord
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.bound.rules import SecretUse
from holdfast.runs.launch.plan import session_options
from holdfast.sessions.service import Sessions
from holdfast.sessions.tools.caller import Caller, Handler
from holdfast.sessions.tools.github import SecretSource
from holdfast.sessions.tools.masking import masked_end

MAX_TEMPLATE: Final = 256 * 1024
MAX_OUTPUT: Final = 64 * 1024
MAX_FILLED: Final = 4 * 1024 * 1024
_MOST_READ: Final = 16 * 1024 * 1024
_SECONDS: Final = 60
_REFERENCE: Final = re.compile(rb"(?:\{\{\s*)?((?:hf|op)://[A-Za-z0-9_./-]{1,400})(?:\s*\}\})?")
_NAME: Final = re.compile(r"hf://([A-Za-z_][A-Za-z0-9_]{0,62})")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_VARIABLES: Final = 64


class NotAvailable(Refused):
    """This server has nothing that can do this."""

    status = 501
    code = "not_available"


class SecretReferences:
    def __init__(self, secrets: SecretSource, sessions: Sessions, boxes: Boxes) -> None:
        self._secrets = secrets
        self._sessions = sessions
        self._boxes = boxes

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "list_secrets": self.list_,
            "inject_secrets": self.inject,
            "run_with_secrets": self.run,
            "fill_secret": self.fill,
        }

    async def list_(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "secrets": [
                {
                    "name": each.name,
                    "reference": f"hf://{each.name}",
                    "hosts": sorted({binding.host for binding in each.bindings}),
                    "exposed": each.expose is not None,
                }
                for each in self._allowed(caller).values()
            ]
        }

    async def inject(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        async with self._open(caller) as box:
            template = await box.files.read(str(input["templatePath"]), length=MAX_TEMPLATE + 1)
            if len(template) > MAX_TEMPLATE:
                raise InvalidRequest(f"the template has more than {MAX_TEMPLATE} bytes")
            filled, count = self._filled(caller, template)
            await box.files.write(str(input["outputPath"]), filled, mode=0o600)
        return {"ok": True, "replaced": count}

    def _filled(self, caller: Caller, template: bytes) -> tuple[bytes, int]:
        """Returns the template with what the box may see of each secret, and how many references it had."""
        known: dict[bytes, bytes] = {}
        pieces: list[bytes] = []
        size = count = end = 0
        for found in _REFERENCE.finditer(template):
            name = found[1]
            if name not in known:
                known[name] = self._seen(caller, name.decode()).encode()
            pieces += [template[end : found.start()], known[name]]
            size += len(pieces[-1])
            count, end = count + 1, found.end()
            if size > MAX_FILLED:  # many references to a long value
                raise InvalidRequest(f"the values in the template have more than {MAX_FILLED} bytes together")
        return b"".join([*pieces, template[end:]]), count

    async def run(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        env = input["env"]
        if len(env) > _MOST_VARIABLES or not all(_VARIABLE.fullmatch(name) for name in env):
            raise InvalidRequest(f"env has at most {_MOST_VARIABLES} variables, whose names are letters, digits and _")
        values = {name: self._seen(caller, str(reference)) for name, reference in env.items()}
        seconds = input.get("timeout", _SECONDS)
        async with self._open(caller) as box:
            try:
                done = await box.exec(
                    ["sh", "-c", str(input["command"])],
                    env=values,
                    cwd=input.get("cwd") or box.spec.workdir,
                    timeout=seconds,
                    max_output=_MOST_READ,
                )
            except ExecTimeout:
                raise Conflict(f"the command took longer than {seconds} s and was ended") from None
        # All values that the box has, not only those of this command: it may print any of them.
        secret = [*values.values(), *self._exposed(caller)]
        out, err = (masked_end(each, secret, MAX_OUTPUT) for each in (done.stdout, done.stderr))
        return {
            "exitCode": done.exit_code,
            "stdout": out.decode("utf-8", "replace"),
            "stderr": err.decode("utf-8", "replace"),
            "truncated": max(len(done.stdout), len(done.stderr)) > MAX_OUTPUT,
        }

    async def fill(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        raise NotAvailable("this server cannot type secrets into a browser", hint="use run_with_secrets")

    # --- rights ---

    def _allowed(self, caller: Caller) -> dict[str, SecretRecord]:
        uses = map(SecretUse.parse, session_options(caller.row.runs).box.network.secrets)
        found = {use.name: self._secrets.find(use.name) for use in uses}
        return {name: record for name, record in found.items() if record is not None}

    def _seen(self, caller: Caller, reference: str) -> str:
        """Returns what the box may see of a secret."""
        if reference.startswith("op://"):
            raise NotAvailable(f"there is no provider for {reference[:100]} here", hint="use hf://NAME: list_secrets")
        match = _NAME.fullmatch(reference)
        if match is None:
            raise InvalidRequest(f"{reference[:100]!r} is not a reference", hint="write hf://NAME")
        record = self._allowed(caller).get(match[1])
        if record is None:
            raise Forbidden(f"this session may not use a secret {match[1]}", hint="create it with --secret NAME")
        return record.placeholder if record.expose is None else self._secrets.reveal(record.name)

    def _exposed(self, caller: Caller) -> list[str]:
        found = self._allowed(caller).values()
        return [self._secrets.reveal(each.name) for each in found if each.expose is not None]

    @asynccontextmanager
    async def _open(self, caller: Caller) -> AsyncIterator[Box]:
        await self._sessions.restore(caller.id)
        row = await self._sessions.box_of(caller.id)
        if row is None:
            raise Conflict(f"session {caller.id} has no box")
        with self._boxes.working(row.id):
            async with await self._boxes.open(row.id) as box:
                yield box
