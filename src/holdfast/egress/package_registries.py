"""Finds out which package registries this machine uses, by asking pip, npm, apt and cargo at run time.

So a company's mirror just works, and no registry is written down here. Boxes get the same settings, without secrets.
A client that is missing, or has nothing to say, adds nothing.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import shutil
import signal
import ssl
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpx

from holdfast.api.box.network import Rule
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.egress.policy import DefaultList, Source, git_hosts
from holdfast.time_limit import time_limit

_ASK_SECONDS: Final = 20.0
_FETCH_SECONDS: Final = 10.0
_MOST_OUTPUT: Final = 4 << 20
_MOST_HOSTS: Final = 200
_MIRRORED: Final = ("pip", "npm")
"""Clients whose packages can be kept for other boxes (`holdfast.egress.packages`)."""
_PIP_DEFAULT: Final = re.compile(r"--index-url.*?\(default:?\s+(https?://[^\s)]+)\)", re.DOTALL)
_PIP_SETTING: Final = re.compile(r"(?:global|install|download|:env:)\.(extra-index-url|find-links|index-url)='(.*)'")
_APT_URI: Final = re.compile(r"^'(https?://[^']+)'", re.MULTILINE)
_LINK: Final = re.compile(r"""href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_REQUEST: Final = re.compile(rb"(?:CONNECT ([^\s:]+):(\d+)|[A-Z]+ (http://\S+)) HTTP/1\.[01]\r\n")

Fetch = Callable[[str], Awaitable[bytes | None]]
"""Returns the content of a URL, or None."""


@dataclass(frozen=True, slots=True)
class Found:
    """The registries that one client uses."""

    urls: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    index: str | None = None
    """The one that it uses without any settings."""


class Machine:
    """The clients of this machine, run with these environment variables only."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def program(self, *names: str) -> str | None:
        path = self.environment.get("PATH")
        return next((found for name in names if (found := shutil.which(name, path=path))), None)

    def without(self, prefix: str) -> Machine:
        """Returns the same without the variables that have this prefix."""
        kept = {name: value for name, value in self.environment.items() if not name.lower().startswith(prefix)}
        return Machine(kept)

    @property
    def home(self) -> Path:
        return Path(self.environment.get("HOME") or "/")

    async def ask(self, command: Sequence[str], extra: Mapping[str, str]) -> str | None:
        """Returns the output of a program, run with these additional variables, or None if it failed."""
        with tempfile.TemporaryDirectory(prefix="holdfast-ask-") as folder:  # so that no project's settings apply
            return await self.ask_in(folder, command, extra)

    async def ask_in(self, folder: str, command: Sequence[str], extra: Mapping[str, str]) -> str | None:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env={**self.environment, **extra},
                stdin=null,
                stdout=pipe,
                stderr=null,
                start_new_session=True,
            )
        except OSError:
            return None
        assert process.stdout is not None
        try:
            async with time_limit(_ASK_SECONDS):
                output = bytearray()
                while len(output) < _MOST_OUTPUT and (data := await process.stdout.read(1 << 16)):
                    output += data
                await process.wait()
        except TimeoutError:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children, which would keep the pipe open
            with suppress(TimeoutError):
                async with time_limit(1.0):
                    while await process.stdout.read(1 << 16):
                        pass
                    await process.wait()
        return output.decode("utf-8", "replace") if process.returncode == 0 else None


async def fetch(url: str) -> bytes | None:
    """Fetches a URL, with the certificates that this machine trusts, without proxies, if it is quick and small."""
    try:
        async with (
            time_limit(_FETCH_SECONDS),
            httpx.AsyncClient(
                verify=ssl.create_default_context(), trust_env=False, follow_redirects=True, max_redirects=3
            ) as client,
            client.stream("GET", url, headers={"Accept": "application/vnd.pypi.simple.v1+json, */*;q=0.5"}) as answer,
        ):
            if answer.status_code != 200:
                return None
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > _MOST_OUTPUT:
                    return None
            return bytes(body)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
        return None


async def find_defaults(machine: Machine, *, fetch: Fetch = fetch, more: Iterable[Source] = ()) -> DefaultList:
    """Returns the default list of this machine. `more` adds known hosts, such as the model gateway."""
    names = ("pip", "npm", "apt", "cargo")
    found = await asyncio.gather(
        ask_pip(machine, fetch), ask_npm(machine, fetch), ask_apt(machine), ask_cargo(machine, fetch)
    )
    sources = [
        Source(rule, name)
        for name, each in zip(names, found, strict=True)
        for rule in dict.fromkeys(_rules(each.urls[:_MOST_HOSTS]))
    ]
    environment = {name: value for each in found for name, value in each.environment}
    of_packages = [
        public(url) for name, each in zip(names, found, strict=True) if name in _MIRRORED for url in each.urls
    ]
    indexes = {name: public(each.index) for name, each in zip(names, found, strict=True) if each.index is not None}
    return DefaultList(
        (*sources, *git_hosts().sources, *more), environment, tuple(dict.fromkeys(of_packages))[:_MOST_HOSTS], indexes
    )


# --- pip ---


async def ask_pip(machine: Machine, fetch: Fetch) -> Found:
    """Asks pip. Its help names the index that it would use; its settings name additional ones."""
    if (pip := machine.program("pip", "pip3")) is None:
        return Found()
    quiet = {"COLUMNS": "10000", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    help_text, settings = await asyncio.gather(
        machine.ask((pip, "install", "--help"), quiet), machine.ask((pip, "config", "list"), quiet)
    )
    index = _PIP_DEFAULT.search(help_text or "")
    options = dict[str, list[str]]()
    for name, value in _PIP_SETTING.findall(settings or ""):
        options.setdefault(name, []).extend(value.replace("\\n", " ").split())
    main = [index[1]] if index else []
    # The help masks passwords. The settings have the URL as it was written.
    indexes = [*(_web(options.get("index-url", ())) or _web(main)), *_web(options.get("extra-index-url", ()))]
    links = _web(options.get("find-links", ()))
    urls = [*indexes, *links]
    for page in await asyncio.gather(*(fetch(urljoin(index.rstrip("/") + "/", "pip/")) for index in indexes)):
        urls += _links(page)
    environment: list[tuple[str, str]] = []
    if options.get("index-url") and (own := _web(options["index-url"])):
        environment += [("PIP_INDEX_URL", public(own[-1])), ("UV_DEFAULT_INDEX", public(own[-1]))]
    if extra := [public(url) for url in _web(options.get("extra-index-url", ()))]:
        environment += [("PIP_EXTRA_INDEX_URL", " ".join(extra)), ("UV_INDEX", " ".join(extra))]
    usual = None if _web(options.get("index-url", ())) else next(iter(_web(main)), None)
    return Found(tuple(dict.fromkeys(urls)), tuple(environment), usual)


def _links(page: bytes | None) -> list[str]:
    """Returns the hosts of the files of an index, which are often other hosts than that of the index."""
    if page is None:
        return []
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return _one_each(str(file["url"]) for file in json.loads(page)["files"])
    return _one_each(html.unescape(link) for link in _LINK.findall(page.decode("utf-8", "replace")))


# --- npm ---


async def ask_npm(machine: Machine, fetch: Fetch) -> Found:
    if (npm := machine.program("npm")) is None:
        return Found()
    quiet = {"NO_UPDATE_NOTIFIER": "1", "npm_config_update_notifier": "false"}
    get = (npm, "config", "get", "registry")
    settings, registry, built_in = await asyncio.gather(
        machine.ask((npm, "config", "ls", "--json"), quiet),
        machine.ask(get, quiet),
        machine.without("npm_config_").ask(
            get, {**quiet, "npm_config_userconfig": "no-user", "npm_config_globalconfig": "no-global"}
        ),
    )
    known: dict[str, Any] = {}
    with suppress(ValueError):
        known = json.loads(settings or "{}")
    main = _web((registry or "").split())[:1]
    scoped = {
        name: value
        for name, value in known.items()
        if name.startswith("@") and name.endswith(":registry") and isinstance(value, str) and _web([value])
    }
    urls = [*main, *scoped.values()]
    for registry_url in main:
        page = await fetch(urljoin(registry_url.rstrip("/") + "/", "semver/latest"))
        with suppress(ValueError, TypeError, KeyError):
            urls += _web([json.loads(page or b"")["dist"]["tarball"]])
    # Only if it was configured, because a variable overrides the settings of a project in the box.
    environment = [("npm_config_registry", public(url)) for url in main if registry != built_in]
    environment += [(f"npm_config_{scope}", public(url)) for scope, url in scoped.items()]
    usual = next((url for url in main if registry == built_in), None)
    return Found(tuple(dict.fromkeys(urls)), tuple(environment), usual)


# --- apt ---


async def ask_apt(machine: Machine) -> Found:
    if (apt := machine.program("apt-get")) is None:
        return Found()
    # Prints what it would download to update its package lists, and does nothing.
    output = await machine.ask((apt, "update", "--print-uris"), {"LC_ALL": "C"})
    return Found(tuple(_one_each(_APT_URI.findall(output or ""))))


# --- cargo ---


async def ask_cargo(machine: Machine, fetch: Fetch) -> Found:
    """Asks cargo. It does not print its index, so a proxy notes which host it connects to, and refuses."""
    if (cargo := machine.program("cargo")) is None:
        return Found()
    configured = _cargo_settings(machine)
    indexes = [url.removeprefix("sparse+") for _, url in configured]
    indexes += await _watch_cargo(machine, cargo)
    urls = _web(indexes)
    for page in await asyncio.gather(*(fetch(urljoin(url.rstrip("/") + "/", "config.json")) for url in urls)):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            settings = json.loads(page or b"")
            urls += _web(str(settings[name]) for name in ("dl", "api") if settings.get(name))
    environment = [
        (f"CARGO_REGISTRIES_{name.upper().replace('-', '_')}_INDEX", kept)
        for name, url in configured
        if name and (kept := public(url))
    ]
    return Found(tuple(dict.fromkeys(urls)), tuple(environment))


def _cargo_settings(machine: Machine) -> list[tuple[str, str]]:
    """Returns the registries by name, and those that replace others without a name."""
    folder = Path(machine.environment.get("CARGO_HOME") or machine.home / ".cargo")
    for name in ("config.toml", "config"):
        try:
            text = (folder / name).read_text(encoding="utf-8")
            settings = tomllib.loads(text)
        except (OSError, ValueError):
            continue
        found = []
        for group, key in (("registries", "index"), ("source", "registry")):
            entries = settings.get(group)
            for entry, values in entries.items() if isinstance(entries, dict) else ():
                url = values.get(key) if isinstance(values, dict) else None
                if isinstance(url, str) and _web([url.removeprefix("sparse+")]):
                    found.append((entry if group == "registries" else "", url))
        return found
    return []


async def _watch_cargo(machine: Machine, cargo: str) -> list[str]:
    asked: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with time_limit(_ASK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            if (found := _REQUEST.match(head)) is not None:
                host, port, url = (each.decode("ascii", "replace") if each else "" for each in found.groups())
                asked.append((url and urljoin(url, ".")) or f"https://{host}:{port}/")
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "CARGO_HTTP_PROXY"), proxy)
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-ask-") as folder:
            project = Path(folder)
            project.joinpath("src").mkdir()
            project.joinpath("src", "lib.rs").touch()
            project.joinpath("Cargo.toml").write_text(
                '[package]\nname = "ask"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\ncfg-if = "1"\n'
            )
            extra = {**proxies, "no_proxy": "", "NO_PROXY": "", "CARGO_NET_RETRY": "0", "CARGO_NET_OFFLINE": "false"}
            await machine.ask_in(folder, (cargo, "fetch", "--quiet"), extra)
    finally:
        server.close()
        await server.wait_closed()
    return asked[:1]


# --- URLs ---


def _web(urls: Iterable[str]) -> list[str]:
    """Returns those that are reached by HTTP."""
    return [url for url in urls if url.startswith(("http://", "https://"))]


def _one_each(urls: Iterable[str]) -> list[str]:
    """Returns one URL for each host."""
    found: dict[tuple[str, str], str] = {}
    for url in _web(urls):
        with suppress(ValueError):
            parts = urlsplit(url)
            found.setdefault((parts.scheme, parts.netloc.rpartition("@")[2]), f"{parts.scheme}://{parts.netloc}/")
    return list(found.values())[:_MOST_HOSTS]


def public(url: str) -> str:
    """Returns the part that a box may know: without user, password, query and fragment."""
    prefix = "sparse+" if url.startswith("sparse+") else ""
    try:
        parts = urlsplit(url.removeprefix("sparse+"))
    except ValueError:
        return ""
    return prefix + urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _rules(urls: Iterable[str]) -> Iterable[Rule]:
    """Returns the rule for a URL. Without an explicit port, HTTP and HTTPS are both allowed."""
    for url in urls:
        with suppress(ValueError, InvalidSpec):
            parts = urlsplit(url)
            if parts.hostname is None:
                continue
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            yield Rule.parse(host if parts.port in (None, 80, 443) else f"{host}:{parts.port}")
