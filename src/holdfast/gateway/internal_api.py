"""The internal API of a session: what code inside its box may ask for, at `/api/…` of the guest API.

It cannot be reached from outside: the connection comes from the box, which tells the session. A table has all routes;
other parts add theirs to it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import orjson

from holdfast.api.errors import HoldfastError, InvalidRequest, MethodNotAllowed, NotFound
from holdfast.gateway.sessions import Sessions, SessionView

PREFIX: Final = "/api/"
MAX_BODY: Final = 8 * 1024 * 1024
_NAME: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class InternalRequest:
    session: SessionView
    """The session of the box that it came from."""
    path: Mapping[str, str]
    """The variable parts of the path."""
    query: Mapping[str, str]
    body: Mapping[str, Any]


Answer = Callable[[InternalRequest], Awaitable[Mapping[str, Any]]]
"""Returns the answer as JSON. A `HoldfastError` becomes an answer with its status, `{"error": message}`."""


@dataclass(frozen=True, slots=True)
class InternalRoute:
    method: str
    path: str
    """Such as `/api/tunnels/{name}`."""
    answer: Answer


class InternalApi:
    """Answers requests from boxes by a table of routes."""

    def __init__(self, sessions: Sessions, routes: Sequence[InternalRoute]) -> None:
        self._sessions = sessions
        self._routes = [(each, _pattern(each.path)) for each in routes]

    async def respond(self, box: str, method: str, path: str, query: bytes, body: bytes) -> tuple[int, bytes]:
        """Returns the status and the body of the answer. Raises only what is not the fault of the request."""
        try:
            route, found = self._find(method, path)
            session = await self._sessions.of_box(box)
            if session is None:
                raise NotFound(f"box {box} belongs to no session")
            request = InternalRequest(session, found, _query(query), _object(body))
            return 200, orjson.dumps(await route.answer(request))
        except HoldfastError as error:
            return error.status or 500, orjson.dumps({"error": error.message})

    def _find(self, method: str, path: str) -> tuple[InternalRoute, dict[str, str]]:
        allowed: list[str] = []
        for route, pattern in self._routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if route.method == method:
                return route, {name: unquote(value) for name, value in match.groupdict().items()}
            allowed.append(route.method)
        if allowed:
            raise MethodNotAllowed(f"{path[:200]} takes {', '.join(allowed)}, not {method}")
        raise NotFound(f"there is no {path[:200]} for boxes")


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(_NAME.sub(r"(?P<\1>[^/]{1,512})", path))


def _query(query: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(query.decode("ascii"), max_num_fields=64))
    except ValueError:
        raise InvalidRequest("the query is malformed") from None


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value
