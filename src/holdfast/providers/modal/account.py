"""A connection to Modal with one account: its client and its app. Translates the SDK's errors into ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import modal
from grpclib import GRPCError
from grpclib.exceptions import StreamTerminatedError
from modal import exception
from modal.config import config
from modal_proto import api_pb2

from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxUnreachable,
    CannotIsolate,
    ImageNotFound,
    InvalidSpec,
    ProviderRefused,
)
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 20.0
_CLOSE_SECONDS: Final = 10.0
_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token of Modal, and where it is valid."""

    token_id: str
    token_secret: str = field(repr=False)
    server_url: str = field(default_factory=lambda: str(config["server_url"]))

    @classmethod
    def of_config_file(cls) -> Credentials | None:
        """Returns the token that `modal token new` stored, if there is one."""
        token_id, secret = config["token_id"], config["token_secret"]
        return cls(str(token_id), str(secret)) if token_id and secret else None


class Account:
    """Connects with the first call. The caller closes it."""

    def __init__(self, credentials: Credentials, app: str, environment: str | None = None) -> None:
        self._credentials = credentials
        self.app_name = app
        self.environment = environment
        self._client: modal.Client | None = None
        self._app: modal.App | None = None
        self._opening = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._credentials.server_url

    async def client(self) -> modal.Client:
        return (await self._connect())[0]

    async def app(self) -> modal.App:
        return (await self._connect())[1]

    async def _connect(self) -> tuple[modal.Client, modal.App]:
        async with self._opening:
            if self._client is None:
                made = self._credentials
                client = modal.Client(made.server_url, api_pb2.CLIENT_TYPE_CLIENT, (made.token_id, made.token_secret))
                await limited(as_any(client).__aenter__(), CONNECT_SECONDS)
                self._client = client
            if self._app is None:
                self._app = await limited(
                    modal.App.lookup.aio(
                        self.app_name,
                        client=self._client,
                        environment_name=self.environment,
                        create_if_missing=True,
                    ),
                    CONNECT_SECONDS,
                )
            return self._client, self._app

    @property
    def has_connected(self) -> bool:
        """Whether Modal has answered yet."""
        return self._app is not None

    async def hello(self) -> None:
        await limited(as_any(await self.client()).hello.aio())

    async def close(self) -> None:
        client, self._client, self._app = self._client, None, None
        if client is not None:
            try:
                await limited(as_any(client).__aexit__(None, None, None), _CLOSE_SECONDS)
            except (exception.Error, OSError, GRPCError) as error:
                log.warning("the connection to Modal was not closed properly: %s", error)


async def limited(work: Awaitable[T], seconds: float | None = None) -> T:
    """Raises `TimeoutError` if a call takes too long: longer than usual, if nothing else is said."""
    async with time_limit(CALL_SECONDS if seconds is None else seconds):
        return await work


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raise our errors instead of those of the SDK. `what` says what could not be done."""
    try:
        yield
    except BoxError:
        raise
    except (exception.Error, GRPCError, StreamTerminatedError, OSError) as error:
        raise translated(error, what) from error


def translated(error: BaseException, what: str) -> BoxError:
    """Returns the error of ours for one of the SDK's, or of the network."""
    message = f"{what}: Modal says: {_text(error)}"
    match error:
        case exception.AuthError() | exception.PermissionDeniedError():
            return ProviderRefused(message, hint="check the token: modal token info, or make one: modal token new")
        case exception.ResourceExhaustedError():
            hint = "try again later, or raise the limits of your workspace at modal.com/settings"
            return ProviderRefused(message, status=_TOO_MANY, hint=hint)
        case exception.AlreadyExistsError() | exception.ConflictError():
            return BoxConflict(message)
        case exception.ImageBuildError():
            return ImageNotFound(message, hint="name an image that a registry has, for example python:3.12-slim")
        case exception.InvalidError():
            return InvalidSpec(message)
        case exception.UnimplementedError():
            return CannotIsolate(message, hint="update the package: pip install -U 'holdfast[modal]'")
        case _:
            return BoxUnreachable(message, hint="see https://status.modal.com, and try again")


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "nothing, in time"
    return (str(error).strip() or type(error).__name__)[:500]


def finished(error: BaseException) -> bool:
    """Returns whether an error means that a sandbox has ended, or never was."""
    return isinstance(error, (exception.NotFoundError, exception.ConflictError))


def as_any(value: object) -> Any:
    """For parts of the SDK without types."""
    return value
