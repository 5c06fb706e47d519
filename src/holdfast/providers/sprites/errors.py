"""What the Sprites API refuses, and how that becomes an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import httpx
from sprites.exceptions import SpriteError

from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxUnreachable, InvalidSpec, ProviderRefused


class ApiProblem(Exception):
    """An answer of the API with a status of 400 or more."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def malformed(self) -> bool:
        return self.status in (400, 422)


def message_in(body: bytes) -> str:
    """Returns what the API says is wrong."""
    text = body[:2000].decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        if isinstance(told, dict):
            text = str(told.get("message") or told.get("error") or text)
    return text[:300] or "no reason given"


def as_box_error(problem: ApiProblem, what: str) -> BoxError:
    if problem.status == 401:
        return ProviderRefused(
            f"{what}: Sprites does not accept the token", hint="give a valid one: holdfast provider add sprites"
        )
    if problem.status == 403:
        return ProviderRefused(
            f"{what}: the token may not do this: {problem.message}", hint="use a token of the right organization"
        )
    if problem.status == 429:
        wait = "later" if problem.retry_after is None else f"in {problem.retry_after:.0f} s"
        return ProviderRefused(f"{what}: Sprites limits requests: {problem.message}", hint=f"try again {wait}")
    if problem.missing:
        return BoxGone(f"{what}: the sprite is gone")
    if problem.conflict:
        return BoxConflict(f"{what}: {problem.message}")
    if problem.malformed:
        return InvalidSpec(f"{what}: Sprites refuses the request: {problem.message}")
    return BoxUnreachable(f"{what}: Sprites answers with status {problem.status}: {problem.message}")


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise errors of the API as errors of boxes. `what` is what failed, for example `cannot list boxes`."""
    try:
        yield
    except ApiProblem as problem:
        raise as_box_error(problem, what) from None
    except (SpriteError, httpx.HTTPError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise BoxUnreachable(f"{what}: Sprites cannot be reached: {reason}", hint="holdfast doctor") from None
