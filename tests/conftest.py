"""What every test can use."""

from __future__ import annotations

import functools
import logging
import os
import signal
import ssl
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default as httpx_transport
from hypothesis import HealthCheck, settings
from tests.agents import InstalledAgents
from tests.runs import matrix
from tests.suite import failures, garbage, needs, sample, schedule

from holdfast.testing.server import ServerProcess

if TYPE_CHECKING:
    from tests.providers.docker.engine import DockerEngine

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores it for what it starts in the background. Commands under test would never get a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # As nohup does. A handler that does nothing keeps that for pytest, and is reset for what pytest starts.
    signal.signal(signal.SIGHUP, lambda *_: None)

# Requests of tests that set no timeout. The five seconds of httpx measure the load of the machine.
for each in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, each, 60.0)


@functools.cache
def _shared_ssl_context(trust_env: bool, *_: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)


def _known_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is not True or cert is not None:
        return httpx.create_ssl_context(verify=verify, cert=cert, trust_env=trust_env)
    return _shared_ssl_context(trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


# Every `httpx.get` of a test would read all certificates of the world, in 25 ms, for an address without TLS.
vars(httpx_transport)["create_ssl_context"] = _known_ssl_context

# How long an example takes, or making one up, tells of the machine's load and not of the code.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("holdfast"), max_examples=20)
settings.load_profile("quick" if os.environ.get("HOLDFAST_TEST_QUICK") else "holdfast")
_GUARD = pytest.StashKey[needs.Guard]()


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A server that runs in the process of a test configures the root logger. The next test finds it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def unchanged_umask() -> Iterator[None]:
    """Homes that were open at the same time in the process of tests do not end in the order of a stack."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def installed_agents() -> InstalledAgents:
    """The real agents: `install("pi")`, and `share_with(home)` before a server is started on that home."""
    return InstalledAgents()


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """One Docker daemon for the tests of a process."""
    from tests.providers.docker.engine import CannotStart, DockerEngine  # which most processes do not need

    try:
        with DockerEngine() as engine:
            yield engine
    except CannotStart as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks for no key, shared by the tests that only add to it."""
    home: Path = tmp_path_factory.mktemp("open") / "home"
    with ServerProcess(home, auth=False, long_poll_timeout=0.5) as server:
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks for keys, shared by the tests that only add to it."""
    home: Path = tmp_path_factory.mktemp("server") / "home"
    with ServerProcess(home, long_poll_timeout=0.5) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_GUARD] = needs.Guard()
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        garbage.hold()  # the process that only hands tests out loads none


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_GUARD].close()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    return schedule.PieceScheduling(config, log)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A quick run does not even import the files that it leaves out whole."""
    return True if os.environ.get("HOLDFAST_TEST_QUICK") and needs.marks_of_file(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs.add_marks(items)
    sample.apply(config, items)
    schedule.add_groups(items)


def pytest_collection_finish() -> None:
    garbage.go_on()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[_GUARD].allow(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    garbage.collect_after(item, nextitem)
    item.config.stash[_GUARD].check(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests left open, and the fault matrix of runs, where all was asked for or something is broken."""
    told = [report for reports in terminalreporter.stats.values() for report in reports]
    if path := os.environ.get(failures.FILE):
        failures.write(Path(path), told)
    for line in garbage.lines(told):
        terminalreporter.write_line(f"left open by {line}")
    ends = matrix.read(told)
    if ends and (matrix.ALL or matrix.BROKEN in ends.values()):
        from tests.runs.faulting import cells  # which loads much

        terminalreporter.section("runs, and what struck them")
        for line in matrix.table(ends, [cell.names for cell in cells()]):
            terminalreporter.write_line(line)
