"""What the Daytona API refuses, and how that becomes an error of ours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from daytona import DaytonaError

from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxUnreachable, InvalidSpec, ProviderRefused
from holdfast.providers.retries import read_retry_after


class StateNeverCame(TimeoutError):
    """A sandbox, snapshot or volume did not reach the state that it was waited for in."""


def status_of(error: BaseException) -> int | None:
    """Returns the status of an answer, or None if there was none."""
    return error.status_code if isinstance(error, DaytonaError) else None


def retry_after(error: DaytonaError) -> float | None:
    """Returns the seconds after which Daytona wants to be asked again, if it says so."""
    headers = {str(name).lower(): str(value) for name, value in error.headers.items()}
    return read_retry_after(headers.get("retry-after"), time.time())


def as_box_error(error: DaytonaError, what: str) -> BoxError:
    """`what` is what failed, for example `boxes cannot be listed`."""
    said = _said(error)
    match error.status_code:
        case 401:
            return ProviderRefused(
                f"{what}: Daytona does not accept the key", hint="give a valid one: holdfast up --daytona-api-key"
            )
        case 403:
            return ProviderRefused(
                f"{what}: Daytona says: {said}",
                hint="use a key that may do this, and its organization: holdfast up --daytona-organization",
            )
        case 404:
            return BoxGone(f"{what}: Daytona says: {said}")
        case 409:
            return BoxConflict(f"{what}: Daytona says: {said}")
        case 429:
            after = retry_after(error)
            wait = "later" if after is None else f"in {after:.0f} s"
            return ProviderRefused(f"{what}: Daytona limits requests: {said}", status=429, hint=f"try again {wait}")
        case 400 | 422:
            return InvalidSpec(f"{what}: Daytona refuses the request: {said}")
        case None:
            return BoxUnreachable(f"{what}: {said}", hint="holdfast doctor")
        case status:
            return BoxUnreachable(f"{what}: Daytona answers with status {status}: {said}", hint="try again")


def _said(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:300]


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise errors of the SDK as errors of boxes. `what` is what failed."""
    try:
        yield
    except DaytonaError as error:
        raise as_box_error(error, what) from None
    except StateNeverCame as error:
        raise BoxUnreachable(f"{what}: {error}", hint="see what Daytona says about it, and try again") from None
    except (TimeoutError, OSError) as error:
        reason = "it does not answer in time" if isinstance(error, TimeoutError) else _said(error)
        raise BoxUnreachable(f"{what}: Daytona cannot be reached: {reason}", hint="holdfast doctor") from None
