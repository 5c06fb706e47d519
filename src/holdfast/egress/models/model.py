"""Models: their names, their APIs with base URLs, and the model that is used by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from holdfast.api.errors.models import InvalidModel
from holdfast.api.model.models import Api, shared
from holdfast.encryption import is_plain_text

DEFAULT_CONTEXT: Final = 128_000
DEFAULT_MAX_TOKENS: Final = 8192

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ID: Final = re.compile(r"[!-~]{1,200}")
_KEY: Final = re.compile(r"[!-~]{1,4096}")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_MAX_URL: Final = 2000
_MOST_TOKENS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Model:
    """A named provider, or a server of the user's own."""

    name: str
    endpoints: Mapping[Api, str]
    """Base URL by API, best API first. OpenAI's include the version, Anthropic's do not."""
    model: str = ""
    """The default model. If empty, the caller has to name one."""
    context_window: int = DEFAULT_CONTEXT
    max_tokens: int = DEFAULT_MAX_TOKENS
    built_in: bool = False
    has_key: bool = False
    key_wanted: bool = False
    """Whether it requires a key."""

    @property
    def apis(self) -> tuple[Api, ...]:
        return tuple(self.endpoints)

    @property
    def is_ready(self) -> bool:
        return self.has_key or not self.key_wanted


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model of a run."""

    name: str
    model: str
    """The provider's name for the model."""
    apis: tuple[Api, ...]
    context_window: int
    max_tokens: int

    def __str__(self) -> str:
        """Returns the form that is shown and that `Models.resolve` accepts."""
        return f"{self.name}/{self.model}"

    def spoken_by(self, apis: Iterable[Api]) -> Api | None:
        """Returns the first of these APIs that the model supports."""
        return shared(apis, self.apis)


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidModel(
            f"{name[:80]!r} is not a valid name for a model",
            hint="use lower case letters, digits, dots, dashes",
        )
    return name


def checked_id(model: str) -> str:
    if not _ID.fullmatch(model):
        raise InvalidModel(f"{model[:80]!r} is not a valid id of a model", hint="use the provider's name: gpt-5.5")
    return model


def checked_key(key: str) -> str:
    """The error does not contain the key."""
    stripped = key.strip()
    if not _KEY.fullmatch(stripped):
        raise InvalidModel("the key is empty, or contains spaces or line ends", hint="give the key alone")
    return stripped


def checked_tokens(number: int) -> int:
    if not 1 <= number <= _MOST_TOKENS:
        raise InvalidModel(f"{number} is not a valid number of tokens", hint=f"give 1 to {_MOST_TOKENS}")
    return number


def checked_base_url(url: str, api: Api) -> str:
    """Returns the stored form: without a slash at the end, and for Anthropic without a version."""
    hint = "for example: https://api.example.com/v1"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidModel(f"{url[:200]!r} is not a valid base URL", hint=hint) from None
    host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc
    if parts.username is not None or parts.password is not None:
        raise InvalidModel("a base URL cannot contain a user name or password", hint="give the key by --key-stdin")
    path = parts.path.rstrip("/")
    if (
        len(url) > _MAX_URL
        or parts.scheme not in ("http", "https")
        or not _HOST.fullmatch(host)
        or not _PATH.fullmatch(path)
        or any(part in (".", "..") for part in path.split("/"))
        or parts.query
        or parts.fragment
    ):
        raise InvalidModel(f"{url[:200]!r} is not a valid base URL", hint=hint)
    if api is Api.ANTHROPIC:
        path = path.removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def check_secrecy(url: str) -> None:
    """Raises `InvalidModel` if a key would cross the internet in plain text."""
    if is_plain_text(url):
        raise InvalidModel(
            f"the key would be sent to {urlsplit(url).hostname} in plain text",
            hint="use https, or a server on this machine or network",
        )


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model as it is stored. What is None, the catalog decides."""

    name: str
    endpoints: str | None = None
    """A JSON object of URLs by API; None for a built-in provider, whose endpoints come with each release."""
    model: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    key: bytes | None = field(default=None, repr=False)
    """Sealed for `purpose`."""

    @property
    def purpose(self) -> str:
        """What the key is sealed for. In a row that points at another server, it cannot be opened."""
        return f"{self.name} {self.endpoints or 'built in'}"


class ModelStore(Protocol):
    """The models that were added to a server. What `put` and `remove` have returned from is on disk."""

    async def load_all(self) -> list[ModelRow]: ...

    async def put(self, row: ModelRow, now: int) -> None:
        """Write a row, in place of the one of that name. `now` is UTC milliseconds."""

    async def remove(self, name: str) -> bool:
        """Remove a row. Returns whether there was one."""
