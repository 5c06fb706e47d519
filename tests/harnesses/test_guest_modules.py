"""What harnesses bring into boxes: packed by name on the host, imported by the same name in the guest."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

import holdfast.guest
import holdfast.harnesses
from holdfast.guest.runner.harness_modules import driver_module, reader_module
from holdfast.harnesses import registry, runner_archive

HARNESSES = registry.entry_prefixes()
SHARED = ("holdfast.guest", "holdfast.harnesses.outcomes", "holdfast.api.outcomes")
"""What the code of any harness may use in a box."""
NAMED = re.compile(r"holdfast\.harnesses\.")


def folders() -> set[str]:
    return {each.parent.name for each in Path(holdfast.harnesses.__file__).parent.glob("*/reader.py")}


def modules_in(archive: bytes) -> Iterator[str]:
    for name in zipfile.ZipFile(BytesIO(archive)).namelist():
        if name.endswith(".py") and not name.endswith("__init__.py"):
            yield name.removesuffix(".py").replace("/", ".")


def test_every_folder_with_a_reader_is_registered_and_the_other_way_round() -> None:
    assert folders() == set(HARNESSES)


@pytest.mark.parametrize("harness", HARNESSES)
def test_an_archive_has_the_modules_that_the_guest_imports_by_name_and_none_of_the_host(harness: str) -> None:
    packed = set(modules_in(runner_archive.pack((harness,))))
    assert reader_module(harness) in packed
    has_driver = (Path(holdfast.harnesses.__file__).parent / harness / "driver.py").exists()
    assert (driver_module(harness) in packed) is has_driver
    own = f"holdfast.harnesses.{harness}."
    assert [each for each in packed if not each.startswith((own, *SHARED))] == []


@pytest.mark.parametrize("harness", HARNESSES)
def test_a_reader_is_found_by_its_name_with_nothing_but_the_archive(harness: str, tmp_path: Path) -> None:
    archive = tmp_path / "runner.zip"
    archive.write_bytes(runner_archive.pack((harness,)))
    code = (
        f"import sys; sys.path[:0] = [{str(archive)!r}]\n"
        "from holdfast.guest.runner.main import _reader\n"
        f"reader = _reader({harness!r})\n"
        "assert not reader.ended and callable(reader.read) and callable(reader.close) and callable(reader.outcome)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_one_module_of_the_guest_names_modules_of_harnesses() -> None:
    root = Path(holdfast.guest.__file__).parent
    naming = {str(each.relative_to(root)) for each in root.rglob("*.py") if NAMED.search(each.read_text())}
    assert naming == {"runner/harness_modules.py"}
