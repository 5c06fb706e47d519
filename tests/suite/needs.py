"""What tests need of the machine, as marks: `bin/test -m "not docker"` runs those that need no Docker.

A mark follows from what a test uses wherever that shows: from a fixture, from a name like `LocalProvider` in its module
or in a module of tests that it imports, or from its file. Other tests carry their marks. A test that starts something
which it is not marked for fails, and the failure names the mark: see `Guard`.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import tempfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

FIXTURES: Final[Mapping[str, tuple[str, ...]]] = {
    "box_server": ("box",),
    "daytona_server": ("box",),
    "local_server": ("box",),
    "outside": ("box",),
    "scene": ("box",),
    "engine": ("docker",),
    "installed_agents": ("agent", "box"),
    "browser": ("browser",),
}
"""Fixtures, and the marks of the tests that use them, directly or by way of other fixtures."""
NAMES: Final = {
    "LocalProvider": "box",
    "ModalCloud": "box",
    "ModalCloudThread": "box",
    "SpritesCounterpart": "box",
    "InstalledAgents": "agent",
}
"""Names of a module, and the mark of all of its tests."""
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    # Their servers make the boxes.
    "box": (
        "tests/cli/test_docs.py",
        "tests/cli/test_purge.py",
        "tests/client/test_boxes.py",
        "tests/client/test_egress.py",
        "tests/client/test_interpreters.py",
        "tests/docs/test_docs.py",
        "tests/examples/*",
        "tests/interpreter/test_children.py",
        "tests/interpreter/test_client_host.py",
        "tests/interpreter/test_direct_box.py",
        "tests/interpreter/test_dspy*.py",
        "tests/interpreter/test_interpreter*.py",
        "tests/interpreter/test_jupyter.py",
        "tests/interpreter/test_large_values.py",
        "tests/interpreter/test_lives.py",
        "tests/interpreter/test_restore.py",
        "tests/interpreter/test_tool_errors.py",
        "tests/providers/local/test_stage.py",
        "tests/runs/test_faults.py",
        "tests/server/test_box_websockets.py",
        "tests/server/test_egress.py",
        "tests/server/test_installing.py",
        "tests/server/test_interpreters.py",
    ),
    # Together, that is: what a file has in fixtures and servers counts too.
    "slow": (
        "tests/attacks/test_tokens.py",
        "tests/boxes/test_life.py",
        "tests/boxes/test_move.py",
        "tests/boxes/test_processes.py",
        "tests/boxes/test_sweep_races.py",
        "tests/cli/test_agent.py",
        "tests/cli/test_app.py",
        "tests/cli/test_box_move.py",
        "tests/cli/test_discovery.py",
        "tests/cli/test_docs.py",
        "tests/cli/test_first_day.py",
        "tests/cli/test_home_key.py",
        "tests/cli/test_maintenance.py",
        "tests/cli/test_model.py",
        "tests/cli/test_parser.py",
        "tests/cli/test_provider.py",
        "tests/cli/test_purge.py",
        "tests/cli/test_restore.py",
        "tests/cli/test_thread.py",
        "tests/cli/test_up.py",
        "tests/cli/test_workspace.py",
        "tests/client/test_append.py",
        "tests/client/test_completions.py",
        "tests/client/test_default_server.py",
        "tests/client/test_home_key.py",
        "tests/client/test_sync.py",
        "tests/client/test_tail.py",
        "tests/clients/*",
        "tests/compat/daytona/*",
        "tests/conformance/*",
        "tests/docs/test_docs.py",
        "tests/docs/test_extending.py",
        "tests/durability/*",
        "tests/egress/test_package_registries.py",
        "tests/guest/test_runner.py",
        "tests/guest/test_runner_away.py",
        "tests/harnesses/test_acp.py",
        "tests/identity/*",
        "tests/interpreter/test_dspy*.py",
        "tests/providers/sprites/test_setup.py",
        "tests/providers/stream/test_egress.py",
        "tests/providers/stream/test_lost_streams.py",
        "tests/providers/stream/test_suite.py",
        "tests/providers/test_dummy_suite.py",
        "tests/providers/test_outside_provider.py",
        "tests/providers/test_process_suite.py",
        "tests/providers/test_provider_suite.py",
        "tests/relay/test_relayed_runs.py",
        "tests/repositories/test_apply.py",
        "tests/repositories/test_apply_attacks.py",
        "tests/repositories/test_branch.py",
        "tests/repositories/test_checkout.py",
        "tests/repositories/test_remotes.py",
        "tests/runs/delegate/test_delegations.py",
        "tests/runs/test_faults.py",
        "tests/runs/test_forks.py",
        "tests/runs/test_going_on.py",
        "tests/runs/test_moving.py",
        "tests/runs/test_one_end.py",
        "tests/runs/test_rewinds.py",
        "tests/runs/test_workspace_diff.py",
        "tests/server/hostile/*",
        "tests/server/test_agents.py",
        "tests/server/test_box_ports.py",
        "tests/server/test_boxes.py",
        "tests/server/test_catch_up.py",
        "tests/server/test_completion_socket.py",
        "tests/server/test_guest_api.py",
        "tests/server/test_home.py",
        "tests/server/test_hostile_credentials.py",
        "tests/server/test_idleness.py",
        "tests/server/test_models.py",
        "tests/server/test_openapi.py",
        "tests/server/test_pool.py",
        "tests/server/test_providers.py",
        "tests/sessions/workflows/test_workflow_faults.py",
        "tests/storage/sqlite/test_damage.py",
        "tests/suite/test_changed.py",
        "tests/suite/test_needs.py",
        "tests/suite/test_sample.py",
        "tests/testing/test_server.py",
        "tests/threads/*/test_many_messages.py",
        "tests/threads/*/test_stream_model.py",
    ),
}
"""Marks, and the files whose tests have them, as patterns."""
_GUARD: Final = Path(__file__).with_name("guard")
_CHECKOUT: Final = Path(__file__).parents[2]
_FOLDER: Final = "TEST_MARKS_FOLDER"


def add_marks(items: Iterable[pytest.Item]) -> None:
    """Add the marks that follow from what tests use."""
    known: dict[Path, set[str]] = {}
    for item in items:
        if item.path not in known:
            known[item.path] = marks_of_file(item.path) | marks_of_module(getattr(item, "module", None))
        used = {mark for name in getattr(item, "fixturenames", ()) for mark in FIXTURES.get(name, ())}
        for mark in sorted(known[item.path] | used):
            item.add_marker(mark)


def marks_of_file(path: Path) -> set[str]:
    if not path.is_relative_to(_CHECKOUT):
        return set()
    name = path.relative_to(_CHECKOUT).as_posix()
    return {mark for mark, patterns in FILES.items() if any(fnmatchcase(name, each) for each in patterns)}


def marks_of_module(module: ModuleType | None, seen: set[str] | None = None) -> set[str]:
    """The marks for the names in a module of tests, and in those of which it has something."""
    if module is None:
        return set()
    seen = {module.__name__} if seen is None else seen
    marks = {mark for name, mark in NAMES.items() if name in vars(module)}
    for value in list(vars(module).values()):
        name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if isinstance(name, str) and name.startswith("tests.") and name not in seen and name in sys.modules:
            seen.add(name)
            marks |= marks_of_module(sys.modules[name], seen)
    return marks


class Guard:
    """Finds what a test starts without the mark for it, in this process and in every Python process below it.

    Those processes load `guard/sitecustomize.py`, as Python does at its start. It learns from one file what the test is
    marked for, and adds the marks that are missing to another.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-marks-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        self._allowed = folder / "allowed"
        self._missing = folder / "missing"
        self._allowed.touch()
        self._missing.touch()
        self._missing.chmod(0o666)  # a server under test may run as another user
        watched = _FOLDER in os.environ  # by the process that started us, which let Python load the guard
        os.environ[_FOLDER] = str(folder)
        os.environ["PYTHONPATH"] = str(_GUARD)
        if not watched:
            runpy.run_path(str(_GUARD / "sitecustomize.py"))

    def allow(self, item: pytest.Item) -> None:
        """Let everything start that this test is marked for, and nothing else."""
        self._allowed.write_text(" ".join(mark.name for mark in item.iter_markers()))

    def check(self, item: pytest.Item) -> None:
        """Fail the test if something was started that it is not marked for."""
        missing = sorted(set(self._missing.read_text().split()))
        if missing:
            os.truncate(self._missing, 0)
            wanted = ", ".join(f"@pytest.mark.{name}" for name in missing)
            pytest.fail(f"{item.name} started something that it is not marked for: add {wanted}", pytrace=False)

    def close(self) -> None:
        self._folder.cleanup()
