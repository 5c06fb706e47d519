"""The sources of the page: their own tests, their types, and that they build to the committed files."""

from __future__ import annotations

import filecmp
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "web"
BUILT = CHECKOUT / "src/holdfast/web"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SOURCES / "node_modules").is_dir(), reason="the node packages of web/ are not installed"),
]


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


def test_the_tests_of_the_sources_pass() -> None:
    run("node", "--test", "src/**/*.test.ts")


def test_the_sources_have_sound_types() -> None:
    run("node", "node_modules/svelte-check/bin/svelte-check", "--tsconfig", "./tsconfig.json", "--fail-on-warnings")


def test_a_build_makes_the_files_that_are_committed(tmp_path: Path) -> None:
    target = tmp_path / "built"
    vite = ("node_modules/vite/bin/vite.js", "build", "--logLevel", "warn", "--outDir", str(target))
    run("node", *vite, "--emptyOutDir")
    names = {path.name for path in BUILT.iterdir()}
    assert {path.name for path in target.iterdir()} == names, "web/ has changed: run bin/build-web"
    _, different, broken = filecmp.cmpfiles(target, BUILT, names, shallow=False)
    assert (different, broken) == ([], [])
