"""The default list, asked of this machine's real clients, with settings that lead to loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.egress.package_registries import (
    Machine,
    ask_apt,
    ask_cargo,
    ask_npm,
    ask_pip,
    fetch,
    find_defaults,
    public,
)

pytestmark = pytest.mark.anyio


class Registry:
    """A server on loopback that answers what it was given, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            self.asked.append(path)
            page = self.pages.get(path)
            status = b"404 Not Found" if page is None else b"200 OK"
            body = page or b""
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0)
    registry.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield registry
    server.close()
    await server.wait_closed()


async def nothing(url: str) -> bytes | None:
    return None


def machine(home: Path, **extra: str) -> Machine:
    """This machine's programs, with settings of their own."""
    kept = {name: os.environ[name] for name in ("PATH", "PYENV_ROOT", "RUSTUP_HOME", "LANG") if name in os.environ}
    rustup = Path.home() / ".rustup"
    if rustup.exists():
        kept.setdefault("RUSTUP_HOME", str(rustup))
    return Machine({**kept, "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, **extra})


def need(*programs: str) -> None:
    if not any(works(program) for program in programs):
        pytest.skip(f"this machine has no {programs[0]} that works")


def works(program: str) -> bool:
    """A shim of something that manages versions may be all there is of it."""
    found = shutil.which(program)
    return found is not None and not subprocess.run([found, "--version"], capture_output=True, check=False).returncode


async def test_a_mirror_in_pips_settings_is_found_with_the_host_of_its_files_and_without_its_password(
    tmp_path: Path, registry: Registry
) -> None:
    need("pip", "pip3")
    registry.pages["/simple/pip/"] = (
        b'<a href="https://files.example.com/a/pip-1.whl#sha256=x">x</a> <a href="../b">y</a>'
    )
    index = registry.url.replace("http://", "http://user:secret@") + "/simple"
    settings = tmp_path / "pip.conf"
    settings.write_text(
        f"[global]\nindex-url = {index}\nextra-index-url = file:///opt\n  https://more.example.com/simple\n"
    )
    found = await ask_pip(machine(tmp_path, PIP_CONFIG_FILE=str(settings)), fetch_loopback)
    assert "https://files.example.com/" in found.urls
    assert "https://more.example.com/simple" in found.urls
    assert dict(found.environment) == {
        "PIP_INDEX_URL": f"{registry.url}/simple",
        "UV_DEFAULT_INDEX": f"{registry.url}/simple",
        "PIP_EXTRA_INDEX_URL": "https://more.example.com/simple",
        "UV_INDEX": "https://more.example.com/simple",
    }


async def fetch_loopback(url: str) -> bytes | None:
    """For the tests: nothing is asked of any other machine."""
    return await fetch(url) if "127.0.0.1" in url else None


async def test_pip_without_settings_is_asked_for_the_index_that_it_has_built_in(tmp_path: Path) -> None:
    need("pip", "pip3")
    found = await ask_pip(machine(tmp_path), nothing)
    assert len(found.urls) == 1
    assert found.urls[0].startswith("https://")
    assert found.environment == ()


async def test_an_index_that_answers_in_json_is_understood(tmp_path: Path, registry: Registry) -> None:
    need("pip", "pip3")
    registry.pages["/simple/pip/"] = json.dumps({"files": [{"url": "https://cdn.example.com/x.whl"}]}).encode()
    found = await ask_pip(machine(tmp_path, PIP_INDEX_URL=f"{registry.url}/simple/"), fetch_loopback)
    assert "https://cdn.example.com/" in found.urls


async def test_npms_registry_and_those_of_scopes_are_found(tmp_path: Path, registry: Registry) -> None:
    need("npm")
    registry.pages["/npm/semver/latest"] = json.dumps(
        {"dist": {"tarball": "https://tarballs.example.com/x.tgz"}}
    ).encode()
    host = registry.url.removeprefix("http:")
    (tmp_path / ".npmrc").write_text(
        f"registry={registry.url}/npm/\n@mine:registry=https://scoped.example.com/\n{host}/npm/:_authToken=secret\n"
    )
    found = await ask_npm(machine(tmp_path, NPM_CONFIG_USERCONFIG=str(tmp_path / ".npmrc")), fetch_loopback)
    assert set(found.urls) >= {
        f"{registry.url}/npm/",
        "https://scoped.example.com/",
        "https://tarballs.example.com/x.tgz",
    }
    assert dict(found.environment) == {
        "npm_config_registry": f"{registry.url}/npm/",
        "npm_config_@mine:registry": "https://scoped.example.com/",
    }


async def test_npm_without_settings_is_asked_for_the_registry_that_it_has_built_in(tmp_path: Path) -> None:
    need("npm")
    nowhere = {"NPM_CONFIG_USERCONFIG": str(tmp_path / "user"), "NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "global")}
    found = await ask_npm(machine(tmp_path, **nowhere), nothing)
    assert len(found.urls) == 1
    assert found.urls[0].startswith("https://")
    assert found.environment == ()


async def test_apts_sources_are_found_in_both_forms(tmp_path: Path) -> None:
    need("apt-get")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "sources.list").write_text("deb [trusted=yes] http://one.example.com/debian stable main\n")
    (parts / "two.sources").write_text(
        "Types: deb\nURIs: https://user:secret@two.example.com/debian\nSuites: stable\nComponents: main\nTrusted: yes\n"
    )
    settings = tmp_path / "apt.conf"
    settings.write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "{parts}";\nDir::State "{tmp_path}";\n'
    )
    found = await ask_apt(machine(tmp_path, APT_CONFIG=str(settings)))
    hosts = {url.rpartition("@")[2].rpartition("//")[2] for url in found.urls}
    assert hosts == {"one.example.com/", "two.example.com/"}


async def test_cargos_registries_are_found_with_the_hosts_that_they_name(tmp_path: Path, registry: Registry) -> None:
    need("cargo")
    registry.pages["/index/config.json"] = json.dumps(
        {"dl": "https://crates.example.com/dl", "api": "https://api.example.com"}
    ).encode()
    (tmp_path / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "mirror"\n'
        f'[source.mirror]\nregistry = "sparse+{registry.url}/index/"\n'
        '[registries.my-own]\nindex = "sparse+https://own.example.com/index/"\ntoken = "secret"\n'
    )
    found = await ask_cargo(machine(tmp_path, CARGO_HOME=str(tmp_path)), fetch_loopback)
    assert set(found.urls) >= {
        f"{registry.url}/index/",
        "https://own.example.com/index/",
        "https://crates.example.com/dl",
        "https://api.example.com",
    }
    assert dict(found.environment) == {"CARGO_REGISTRIES_MY_OWN_INDEX": "sparse+https://own.example.com/index/"}


async def test_cargo_without_settings_shows_where_it_turns_to_and_gets_nowhere(tmp_path: Path) -> None:
    need("cargo")
    found = await ask_cargo(machine(tmp_path, CARGO_HOME=str(tmp_path)), nothing)
    assert len(found.urls) == 1
    assert found.urls[0].startswith("https://")


async def test_the_whole_list_names_who_each_rule_is_from_and_knows_no_secret(
    tmp_path: Path, registry: Registry
) -> None:
    index = registry.url.replace("http://", "http://user:secret@") + "/simple"
    found = await find_defaults(
        machine(tmp_path, PIP_INDEX_URL=index, npm_config_registry=index, CARGO_HOME=str(tmp_path)), fetch=nothing
    )
    assert {source.why for source in found.sources} >= {"git"}
    assert "github.com" in [rule.host for rule in found.rules]
    if shutil.which("pip"):
        assert f"127.0.0.1:{registry.url.rpartition(':')[2]}" in [str(rule) for rule in found.rules]
    assert "secret" not in str(found)


async def test_a_machine_without_clients_has_git_hosts_alone(tmp_path: Path) -> None:
    found = await find_defaults(Machine({"PATH": str(tmp_path), "HOME": str(tmp_path)}), fetch=nothing)
    assert {source.why for source in found.sources} == {"git"}
    assert found.environment == {}


async def test_a_client_that_hangs_fails_or_talks_without_end_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.egress.package_registries._ASK_SECONDS", 0.3)
    for name, script in (("npm", "exec sleep 60"), ("apt-get", "exit 1"), ("pip", "exec yes http://x.example.com")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    here = Machine({"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)})
    async with asyncio.timeout(240):
        assert (await ask_npm(here, nothing)).urls == ()
        assert (await ask_apt(here)).urls == ()
        assert (await ask_pip(here, nothing)).urls == ()


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:secret@h.example/simple?token=secret#x", "https://h.example/simple"),
        ("sparse+https://u@h.example:8443/index/", "sparse+https://h.example:8443/index/"),
        ("https://[bad", ""),
    ],
)
def test_what_a_box_gets_of_a_url_has_no_secrets(url: str, kept: str) -> None:
    assert public(url) == kept
