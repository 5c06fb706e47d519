"""A client of the Docker daemon: requests with time limits, streams, and helpful errors.

It knows containers, images and volumes, but not boxes. aiodocker sends the requests.
"""

from __future__ import annotations

import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.stream import Stream
from yarl import URL

from holdfast.api.errors.boxes import BoxUnreachable, CannotIsolate, InvalidSpec, ProviderRefused
from holdfast.time_limit import time_limit

DEFAULT_ADDRESS: Final = "unix:///var/run/docker.sock"
SECONDS: Final = 60.0
"""For a request that should be answered soon."""
LONG_SECONDS: Final = 1800.0
"""For a request that transfers much data: a commit, an export, an image."""
_CONNECT_SECONDS: Final = 10.0
_OLDEST: Final = (1, 40)
_CANNOT_CONNECT: Final = 900
"""The status with which aiodocker reports a daemon that accepts no connections."""
_LARGEST_ANSWER: Final = 64 * 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DockerHost:
    """The address of a daemon, and how to connect to it."""

    address: str = DEFAULT_ADDRESS
    """`unix:///path`, `tcp://host:port`, or `https://host:port` for TLS."""
    tls: Path | None = None
    """A folder with ca.pem, and with cert.pem and key.pem if the daemon requires a client certificate."""

    @property
    def is_local(self) -> bool:
        """Whether the daemon is on this machine, judging by its address."""
        return self.address.startswith("unix://")

    @property
    def socket(self) -> Path | None:
        return Path(self.address.removeprefix("unix://")) if self.is_local else None

    def check(self) -> None:
        parts = urlsplit(self.address)
        fits = parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc
        fits = fits or (parts.scheme in ("tcp", "http", "https") and bool(parts.hostname))
        if not fits:
            raise InvalidSpec(
                f"{self.address!r} is not an address of a Docker daemon",
                hint="use unix:///var/run/docker.sock, tcp://host:2375 or https://host:2376",
            )


class Removal(Enum):
    """The result of removing an image."""

    MISSING = "missing"
    USED = "used"
    """A container uses it: nothing was removed."""
    UNNAMED = "unnamed"
    """One of its names was removed. Something else needs its data."""
    DELETED = "deleted"


class EngineProblem(Exception):
    """The daemon refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409


@contextlib.contextmanager
def refusals_named(what: str) -> Any:
    """Turn an error of the daemon into `ProviderRefused`, with a message that starts with `what`."""
    try:
        yield
    except EngineProblem as problem:
        raise ProviderRefused(
            f"{what}: Docker says: {problem.message}", hint="docker info shows the state of the daemon"
        ) from None


class Engine:
    """Owned by a provider, which opens and closes it."""

    def __init__(self, host: DockerHost) -> None:
        host.check()
        self.host = host
        self._docker: Docker | None = None

    async def open(self) -> Mapping[str, Any]:
        """Connect. Returns what the daemon reports about itself. Raises `CannotIsolate` if there is none, or an old
        one."""
        socket = self.host.socket
        if socket is not None and not socket.exists():
            raise CannotIsolate(
                f"there is no Docker daemon at {socket}",
                hint="start Docker, or name its address: holdfast up --docker-host unix:///path or tcp://host:port",
            )
        docker = self._connect()
        try:
            async with time_limit(_CONNECT_SECONDS):
                version = await docker.version()
                found = tuple(int(part) for part in str(version["ApiVersion"]).split("."))
                if found < _OLDEST:
                    raise CannotIsolate(
                        f"the Docker daemon at {self.host.address} is too old: its API is {version['ApiVersion']}",
                        hint="use Docker 19.03 or newer",
                    )
                info: Mapping[str, Any] = await docker.system.info()
        except (DockerError, aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError) as error:
            await docker.close()
            raise CannotIsolate(
                f"the Docker daemon at {self.host.address} cannot be used: {_reason(error)}",
                hint=f"check that this works: docker -H {self.host.address} version",
            ) from None
        except BaseException:
            await docker.close()
            raise
        self._docker = docker
        return info

    def _connect(self) -> Docker:
        # Each box holds a connection: there must be no limit to them here. Our own connector also keeps the client
        # from reading its settings out of the environment.
        connector: aiohttp.BaseConnector
        socket = self.host.socket
        if socket is not None:
            connector, url = aiohttp.UnixConnector(str(socket), limit=0), "unix://localhost"
        else:
            parts = urlsplit(self.host.address)
            secure = parts.scheme == "https" or self.host.tls is not None
            connector = aiohttp.TCPConnector(limit=0, ssl=self._certificates() if secure else False)
            url = f"{'https' if secure else 'http'}://{parts.netloc}"
        session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(), trust_env=False)
        docker = Docker(url, connector=connector, session=session)
        docker._owns_session = True  # so that closing it closes the session and the connector
        return docker

    def _certificates(self) -> ssl.SSLContext:
        folder = self.host.tls
        try:
            context = ssl.create_default_context(cafile=None if folder is None else str(folder / "ca.pem"))
            if folder is not None and (folder / "cert.pem").exists():
                context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        except OSError as error:
            raise CannotIsolate(
                f"the certificates in {folder} cannot be used: {error}",
                hint="add ca.pem, cert.pem and key.pem",
            ) from None
        return context

    @property
    def docker(self) -> Docker:
        if self._docker is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._docker

    async def close(self) -> None:
        if self._docker is not None:
            docker, self._docker = self._docker, None
            await docker.close()

    # --- requests ---

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        seconds: float = SECONDS,
    ) -> Any:
        """Send one request. Returns the answer as JSON, or None. Raises `EngineProblem` or `BoxUnreachable`."""

        async def request() -> Any:
            data = None if body is None else json.dumps(body)
            async with self._answer(method, path, params, data) as answer:
                text = await _bounded(answer)
                return json.loads(text) if text else None

        return await self._reached(request, seconds)

    async def _reached(self, request: Callable[[], Awaitable[T]], seconds: float) -> T:
        try:
            async with time_limit(seconds):
                return await request()
        except DockerError as error:
            if error.status == _CANNOT_CONNECT:
                raise self._unreachable(error) from None
            raise EngineProblem(error.status, str(error.message)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        except TimeoutError:
            raise self._unreachable(TimeoutError(f"no answer in {seconds:g} s")) from None

    def _unreachable(self, error: BaseException) -> BoxUnreachable:
        return BoxUnreachable(
            f"the Docker daemon at {self.host.address} does not answer: {_reason(error)}",
            hint=f"check that this works: docker -H {self.host.address} version",
        )

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, params: Mapping[str, Any] | None, data: Any, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.docker._query(
            path, method, params=_texts(params), data=data, headers=headers or None, timeout=None
        ) as answer:
            try:
                yield answer
            finally:
                answer.release()

    async def send(
        self,
        path: str,
        pieces: AsyncIterable[bytes] | bytes,
        *,
        params: Mapping[str, Any] | None = None,
        put: bool = False,
    ) -> list[dict[str, Any]]:
        """Send data as it arrives. Returns the daemon's messages. Errors of the source are raised."""
        broken: list[BaseException] = []

        async def guarded(source: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
            try:
                async for piece in source:
                    yield piece
            except BaseException as error:
                broken.append(error)
                raise

        async def request() -> list[dict[str, Any]]:
            data = io.BytesIO(pieces) if isinstance(pieces, bytes) else guarded(pieces)
            async with self._answer(
                "PUT" if put else "POST", path, params, data, **{"Content-Type": "application/x-tar"}
            ) as answer:
                lines = (await _bounded(answer)).splitlines()
                return [json.loads(line) for line in lines if line.strip()]

        try:
            answers = await self._reached(request, LONG_SECONDS)
        except (EngineProblem, BoxUnreachable):
            if broken:
                raise broken[0] from None
            raise
        if broken:
            raise broken[0]
        for answer in answers:
            if "error" in answer:
                raise EngineProblem(400, str(answer["error"]))
        return answers

    async def receive(self, path: str, *, params: Mapping[str, Any] | None = None) -> AsyncIterator[bytes]:
        """Yields a large answer piece by piece."""
        try:
            async with self._answer("GET", path, params, None) as answer:
                async for piece in answer.content.iter_chunked(1 << 18):
                    yield piece
        except DockerError as error:
            if error.status == _CANNOT_CONNECT:
                raise self._unreachable(error) from None
            raise EngineProblem(error.status, str(error.message)) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None

    # --- containers ---

    async def create_container(self, name: str, config: Mapping[str, Any]) -> str:
        answer = await self.ask("POST", "containers/create", params={"name": name}, body=config)
        return str(answer["Id"])

    async def container(self, name: str, *, size: bool = False) -> dict[str, Any]:
        found = await self.ask("GET", f"containers/{quote(name)}/json", params={"size": int(size)})
        return dict(found)

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found = await self.ask("GET", "containers/json", params={"all": 1, "filters": _filters(labels)})
        return [each for each in found if isinstance(each, dict)]

    async def remove_container(self, name: str) -> bool:
        """Kill and remove a container with its anonymous volumes. Returns whether it existed."""
        try:
            await self.ask("DELETE", f"containers/{quote(name)}", params={"force": 1, "v": 1})
        except EngineProblem as problem:
            if problem.missing:
                return False
            if problem.conflict and "already in progress" in problem.message:
                await self._until_removed(name)
                return False
            raise
        return True

    async def _until_removed(self, name: str) -> None:
        with contextlib.suppress(EngineProblem):
            await self.ask("POST", f"containers/{quote(name)}/wait", params={"condition": "removed"})

    async def attach(self, name: str) -> Stream:
        """Attach to stdin, stdout and stderr of a container's first process. Call this before it starts, to miss
        nothing."""
        query = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1, "logs": 0}
        return await self._stream(URL(f"containers/{quote(name)}/attach").with_query(query), None)

    async def execute(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Stream:
        """Run another process in a container, with its stdin, stdout and stderr."""
        body = {
            "AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False, "Cmd": list(command),
            "User": "0:0", "WorkingDir": "/", "Env": [f"{name}={value}" for name, value in (environment or {}).items()],
        }  # fmt: skip
        made = await self.ask("POST", f"containers/{quote(name)}/exec", body=body)
        return await self._stream(URL(f"exec/{made['Id']}/start"), json.dumps({"Detach": False, "Tty": False}).encode())

    async def _stream(self, url: URL, body: bytes | None) -> Stream:
        async def setup() -> tuple[URL, bytes | None, bool]:
            return url, body, False

        async def request() -> Stream:
            stream = Stream(self.docker, setup)
            await stream._init()
            return stream

        return await self._reached(request, SECONDS)

    # --- images ---

    async def image(self, name: str) -> dict[str, Any]:
        return dict(await self.ask("GET", f"images/{quote(name, safe='/:@')}/json"))

    async def images(self, labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        found = await self.ask("GET", "images/json", params={"filters": _filters(labels or {})})
        return [each for each in found if isinstance(each, dict)]

    async def remove_image(self, name: str) -> Removal:
        """Remove a name, or an image without names. Data that a container or another image uses stays."""
        try:
            answer = await self.ask("DELETE", f"images/{quote(name, safe='/:@')}", seconds=LONG_SECONDS)
        except EngineProblem as problem:
            if problem.missing:
                return Removal.MISSING
            if problem.conflict:
                return Removal.USED
            raise
        return Removal.DELETED if any("Deleted" in each for each in answer or ()) else Removal.UNNAMED

    async def tag_image(self, image: str, name: str) -> None:
        repository, _, tag = name.rpartition(":")
        await self.ask("POST", f"images/{quote(image, safe='/:@')}/tag", params={"repo": repository, "tag": tag})

    # --- volumes ---

    async def create_volume(self, name: str, labels: Mapping[str, str], **options: str) -> dict[str, Any]:
        """Create a volume. If one of this name exists, returns that one with its own labels."""
        body = {"Name": name, "Driver": "local", "DriverOpts": options, "Labels": dict(labels)}
        return dict(await self.ask("POST", "volumes/create", body=body))

    async def volume(self, name: str) -> dict[str, Any]:
        return dict(await self.ask("GET", f"volumes/{quote(name)}"))

    async def volumes(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found = await self.ask("GET", "volumes", params={"filters": _filters(labels)})
        return [each for each in found.get("Volumes") or () if isinstance(each, dict)]

    async def remove_volume(self, name: str) -> bool:
        """Returns whether it existed. Raises `EngineProblem` if it is in use."""
        try:
            await self.ask("DELETE", f"volumes/{quote(name)}")
        except EngineProblem as problem:
            if problem.missing:
                return False
            raise
        return True


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    pieces = []
    size = 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > _LARGEST_ANSWER:
            raise ValueError("the answer is too large")
    return b"".join(pieces)


def _filters(labels: Mapping[str, str]) -> str:
    return json.dumps({"label": [f"{name}={value}" for name, value in labels.items()]} if labels else {})


def _texts(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else {name: str(value) for name, value in params.items()}


def _reason(error: BaseException) -> str:
    if isinstance(error, DockerError):
        return str(error.message)
    return str(error) or type(error).__name__
