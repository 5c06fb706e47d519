"""A change chooses the tests that it can break, and says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.suite.changed import changed_files, choose, read_module, read_sources

FILES = {
    "pyproject.toml": "",
    "src/holdfast/__init__.py": "_HOMES = {'Client': 'holdfast.client'}",
    "src/holdfast/client/__init__.py": "from holdfast.threads import entries",
    "src/holdfast/threads/__init__.py": "",
    "src/holdfast/threads/entries.py": "",
    "src/holdfast/threads/words.txt": "",
    "src/holdfast/boxes/__init__.py": "",
    "src/holdfast/boxes/pool.py": "if TYPE_CHECKING:\n    from holdfast.threads import entries",
    "src/holdfast/cli/__main__.py": "def main():\n    from holdfast.boxes.pool import Pool",
    "src/holdfast/guest/runner/main.py": "",
    "tests/conftest.py": "",
    "tests/boxes/conftest.py": "import holdfast.boxes.pool\n@pytest.fixture\ndef pool(): ...",
    "tests/boxes/test_life.py": "def test_it(pool): ...",
    "tests/boxes/test_rows.py": "def test_it(): ...",
    "tests/boxes/tar.py": "",
    "tests/cli/test_cli.py": "command = [python, '-m', 'holdfast.cli']",
    "tests/client/test_client.py": "from holdfast import Client",
    "tests/guest/test_main.py": "from tests.boxes import tar",
    "tests/threads/test_entries.py": "",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def chosen(checkout: Path, *changed: str) -> set[str]:
    return set(choose(changed, read_sources(checkout)).files)


def test_a_module_chooses_those_who_import_it_by_way_of_others(checkout: Path) -> None:
    assert "tests/client/test_client.py" in chosen(checkout, "src/holdfast/threads/entries.py")


def test_an_import_for_type_checkers_alone_is_none(checkout: Path) -> None:
    assert "tests/boxes/test_life.py" not in chosen(checkout, "src/holdfast/threads/entries.py")


def test_a_program_that_a_test_starts_is_an_import(checkout: Path) -> None:
    assert "tests/cli/test_cli.py" in chosen(checkout, "src/holdfast/boxes/pool.py")


def test_what_mirrors_the_change_comes_first(checkout: Path) -> None:
    assert (
        choose(["src/holdfast/threads/entries.py"], read_sources(checkout)).files[0] == "tests/threads/test_entries.py"
    )


def test_the_tests_of_the_same_folder_are_chosen_although_they_import_nothing(checkout: Path) -> None:
    assert "tests/boxes/test_rows.py" in chosen(checkout, "src/holdfast/boxes/pool.py")
    assert chosen(checkout, "src/holdfast/threads/words.txt") == {"tests/threads/test_entries.py"}


def test_a_fixture_brings_the_imports_of_its_conftest_along(checkout: Path) -> None:
    sources = read_sources(checkout)
    assert "holdfast.boxes.pool" in sources.used_by("tests.boxes.test_life")
    assert "holdfast.boxes.pool" not in sources.used_by("tests.boxes.test_rows")


def test_a_helper_of_tests_chooses_those_who_import_it(checkout: Path) -> None:
    assert chosen(checkout, "tests/boxes/tar.py") == {"tests/guest/test_main.py"}


def test_guests_go_by_folder(checkout: Path) -> None:
    assert "tests/guest/test_main.py" in chosen(checkout, "src/holdfast/guest/runner/main.py")


@pytest.mark.parametrize("ground", ["pyproject.toml", "bin/test", "tests/conftest.py", "requirements/dev.txt"])
def test_the_ground_chooses_everything(checkout: Path, ground: str) -> None:
    choice = choose([ground], read_sources(checkout))
    assert len(choice.files) == 6
    assert ground in choice.why


def test_nothing_is_chosen_for_nothing(checkout: Path) -> None:
    assert chosen(checkout) == set()
    assert chosen(checkout, "benchmarks/peers.py") == set()


def test_imports_are_found_wherever_they_are() -> None:
    source = "def f():\n    import a.b\n    g('c.d')\nfrom e import f"
    known = {"a", "a.b", "c.d", "e", "e.f", "g"}
    assert read_module(source, "x", known).imports == {"a", "a.b", "c.d", "e", "e.f"}


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_change_is_what_the_branch_committed_and_what_nobody_committed_yet(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "main")
    for name in ("before", "committed", "edited"):
        (tmp_path / name).write_text("")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", name)
        if name == "before":
            git(tmp_path, "branch", "mine")
    assert changed_files(tmp_path) == ["edited"]  # on main: its last commit
    git(tmp_path, "checkout", "mine")
    (tmp_path / "mine").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "mine")
    (tmp_path / "before").write_text("other")
    (tmp_path / "new").write_text("")
    assert changed_files(tmp_path) == ["before", "mine", "new"]


def test_this_checkout_can_be_read() -> None:
    sources = read_sources(Path(__file__).parents[2])
    assert "tests.suite.test_changed" in sources.tests
    assert "holdfast.server.compose" in sources.used_by("tests.server.test_rest")
    assert "holdfast.server.compose" not in sources.used_by("tests.test_time_limit")
