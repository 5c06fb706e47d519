"""The HTTP interface of subscriptions: `__ds/…` below the stream root, routed before any stream.

The caller authenticates requests, except for the paths that `needs_grant` excludes: those need a token of a wake, or
nothing (the public keys). It also adds the common response headers.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from holdfast.api.errors import Refused
from holdfast.threads.protocol.messages import JSON_TYPE, Response
from holdfast.threads.subscriptions import schemas
from holdfast.threads.subscriptions.errors import (
    InvalidSubscription,
    SubscriptionError,
    SubscriptionNotFound,
    TokenInvalid,
)
from holdfast.threads.subscriptions.records import Kind
from holdfast.threads.subscriptions.service import SubscriptionService

PREFIX: Final = f"{schemas.CONTROL}/"
_SUBSCRIPTIONS: Final = f"{PREFIX}subscriptions/"
_KEY_SET: Final = f"{PREFIX}jwks.json"
_BY_TOKEN: Final = ("callback", "ack", "release")
_BEARER: Final = "bearer "


def is_control(path: str) -> bool:
    """Returns whether a path after `/v1/stream/` belongs to subscriptions and not to a stream."""
    return path == schemas.CONTROL or path.startswith(PREFIX)


def needs_grant(path: str) -> bool:
    """Whether the caller must authenticate the request. Tokens of wakes are checked here, and public keys are public.

    Must get exactly the same path as `handle`: two readings of one path would be a way around the check.
    """
    if path == _KEY_SET:
        return False
    parts = path.removeprefix(_SUBSCRIPTIONS).split("/")
    return not (path.startswith(_SUBSCRIPTIONS) and len(parts) == 2 and parts[1] in _BY_TOKEN)


class SubscriptionRoutes:
    """Requests in, responses out. Errors have the common format, with the protocol's codes."""

    def __init__(self, service: SubscriptionService) -> None:
        self._service = service

    async def handle(
        self, method: str, path: str, headers: dict[bytes, bytes], body: bytes, request_id: str = ""
    ) -> Response | None:
        """Handle a request. Returns None if the path does not belong here. `path` is after `/v1/stream/`, decoded, no
        query.
        """
        if not is_control(path):
            return None
        try:
            if path == _KEY_SET:
                return self._key_set(method)
            if not path.startswith(_SUBSCRIPTIONS):
                raise SubscriptionNotFound(f"there is nothing at {path[:200]!r}")
            return await self._subscription(method, path[len(_SUBSCRIPTIONS) :].split("/"), headers, body)
        except Refused as error:
            return _error(error, request_id)

    def _key_set(self, method: str) -> Response:
        if method != "GET":
            return _not_allowed("GET")
        cache = (b"cache-control", b"public, max-age=300")
        return Response(
            200, [(b"content-type", b"application/jwk-set+json"), cache], orjson.dumps(self._service.key_set())
        )

    async def _subscription(self, method: str, parts: list[str], headers: dict[bytes, bytes], body: bytes) -> Response:
        id = schemas.parse_id(parts[0])
        match parts[1:]:
            case []:
                return await self._whole(method, id, body)
            case ["streams"]:
                if method != "POST":
                    return _not_allowed("POST")
                paths = schemas.parse_streams(schemas.parse_object(body).get("streams"), self._service.limits)
                if not paths:
                    raise InvalidSubscription("streams must name at least one stream")
                await self._service.add_streams(id, paths)
                return Response(204, [])
            case ["streams", *path]:
                if method != "DELETE":
                    return _not_allowed("DELETE")
                await self._service.remove_stream(id, "/".join(path).strip("/"))
                return Response(204, [])
            case [("callback" | "claim" | "ack" | "release") as action]:
                if method != "POST":
                    return _not_allowed("POST")
                return await self._act(action, id, headers, body)
        raise SubscriptionNotFound(f"subscriptions have no {'/'.join(parts[1:])[:200]!r}")

    async def _whole(self, method: str, id: str, body: bytes) -> Response:
        match method:
            case "PUT":
                created = await self._service.create(id, schemas.parse_config(body, self._service.limits))
                return _json(201 if created.new else 200, created.description)
            case "GET":
                return _json(200, self._service.describe(id))
            case "DELETE":
                await self._service.delete(id)
                return Response(204, [])
        return _not_allowed("PUT, GET, DELETE")

    async def _act(self, action: str, id: str, headers: dict[bytes, bytes], body: bytes) -> Response:
        if action == "claim":
            return _json(200, await self._service.claim(id, schemas.parse_worker(body)))
        token = _bearer(headers)
        report = schemas.parse_report(body, self._service.limits)
        if action == "release":
            await self._service.release(id, token, report)
            return Response(204, [])
        reported = await self._service.report(id, token, report, kind=Kind.PULL_WAKE if action == "ack" else None)
        answer: dict[str, Any] = {"ok": True, "next_wake": reported.next_wake}
        if reported.token is not None:
            answer["token"] = reported.token
        return _json(200, answer)


def _bearer(headers: dict[bytes, bytes]) -> str:
    value = headers.get(b"authorization", b"").decode("latin-1")
    if value[: len(_BEARER)].lower() != _BEARER:
        raise TokenInvalid("this request needs the token of a wake", hint="send it as Authorization: Bearer …")
    return value[len(_BEARER) :].strip()


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(status, [JSON_TYPE, (b"cache-control", b"no-store")], orjson.dumps(value))


def _not_allowed(methods: str) -> Response:
    return Response(405, [(b"allow", methods.encode())])


def _error(error: Refused, request_id: str) -> Response:
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.hint is not None:
        fields["hint"] = error.hint
    if isinstance(error, SubscriptionError):
        fields |= error.fields
    fields["requestId"] = request_id
    return Response(error.status, [JSON_TYPE, *error.headers], orjson.dumps({"error": fields}))
