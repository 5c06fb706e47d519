"""Looking through files, changing many, removing many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.guest.init import search as module
from holdfast.guest.init.search import describe, find, list_folder, remove_tree, replace, search


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project, with a link that leads out of it."""
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "one.py").write_text("import os\nprint('one')\n")
    (root / "src" / "deep" / "two.py").write_text("import sys\n# one and two\n")
    (root / "src-more").write_text("one\n")
    (root / "read.me").write_text("nothing here\n")
    (tmp_path / "outside.py").write_text("one outside\n")
    (root / "out").symlink_to(tmp_path)
    (root / "out.py").symlink_to(tmp_path / "outside.py")
    return root


def names(root: Path, found: list[tuple[str, str, int, int, int, str | None]]) -> list[str]:
    return [os.path.relpath(each[0], root) for each in found]


def test_a_folder_is_listed_by_name_with_what_each_thing_is(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "read.me").chmod(0o640)
    os.utime(root / "read.me", ns=(0, 1_234_567_891_000_000))
    listed = {Path(each[0]).name: each for each in list_folder(str(root))}
    assert list(listed) == ["out", "out.py", "pipe", "read.me", "src", "src-more"]
    assert listed["read.me"] == (str(root / "read.me"), "file", 13, 0o640, 1_234_567_891, None)
    assert listed["out"][1] == "link"
    assert listed["out"][5] == str(root.parent)
    assert (listed["pipe"][1], listed["src"][1]) == ("other", "folder")
    assert describe(str(root / "read.me")) == listed["read.me"]
    with pytest.raises(NotADirectoryError):
        list_folder(str(root / "read.me"))
    with pytest.raises(FileNotFoundError):
        list_folder(str(root / "nothing"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["out", "out.py", "read.me", "src", "src-more", "src/deep", "src/deep/two.py", "src/one.py"]),
        ("*.py", ["out.py", "src/deep/two.py", "src/one.py"]),
        ("src/*.py", ["src/one.py"]),
        ("./src/*.py", ["src/one.py"]),
        ("src/**/*.py", ["src/deep/two.py", "src/one.py"]),
        ("**/*.py", ["out.py", "src/deep/two.py", "src/one.py"]),
        ("**/deep/**", ["src/deep/two.py"]),
        ("[a-r]*", ["out", "out.py", "read.me", "src/deep", "src/one.py"]),
        ("[!a-r]*", ["src", "src-more", "src/deep/two.py"]),
        ("???", ["out", "src"]),
        ("READ.ME", []),
        ("*.p[", []),
        ("o.*", []),
    ],
)
def test_things_are_found_by_name_or_path_in_order(root: Path, pattern: str, expected: list[str]) -> None:
    assert names(root, find(str(root), pattern, 100)) == expected


def test_finding_stops_at_its_limit(root: Path) -> None:
    assert names(root, find(str(root), "*.py", 2)) == ["out.py", "src/deep/two.py"]
    assert find(str(root), "*", 0) == []


def test_finding_does_not_follow_links_and_needs_a_folder(root: Path) -> None:
    assert names(root, find(str(root), "outside*", 10)) == []
    with pytest.raises(FileNotFoundError):
        find(str(root / "nothing"), "*", 1)
    with pytest.raises(NotADirectoryError):
        find(str(root / "read.me"), "*", 1)


def test_names_that_are_no_text_are_found(root: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (root / name).write_text("one")
    assert names(root, find(str(root), "caf?", 1)) == [name]
    assert [Path(each[0]).name for each in search(str(root), "one", "caf*", False, 5)] == [name]


def test_lines_with_a_text_are_found_in_order(root: Path) -> None:
    found = [(os.path.relpath(path, root), line, text) for path, line, text in search(str(root), "one", "*", False, 9)]
    assert found == [
        ("src-more", 1, "one"),
        ("src/deep/two.py", 2, "# one and two"),
        ("src/one.py", 2, "print('one')"),
    ]
    assert len(search(str(root), "one", "*", False, 2)) == 2
    assert len(search(str(root), "one", "*.py", False, 9)) == 2
    assert len(search(str(root), "one", "src/*.py", False, 9)) == 1
    assert len(search(str(root / "src" / "one.py"), "one", "*", False, 9)) == 1


def test_lines_with_a_regular_expression_are_found(root: Path) -> None:
    assert [each[2] for each in search(str(root), r"^import \w+$", "*", True, 9)] == ["import sys", "import os"]
    assert search(str(root), "o.e", "*", False, 9) == []
    with pytest.raises(ValueError, match="is invalid"):
        search(str(root), "(", "*", True, 9)
    with pytest.raises(ValueError, match="empty"):
        search(str(root), "", "*", False, 9)


def test_binary_files_are_passed_over_and_other_encodings_are_shown(root: Path) -> None:
    (root / "binary").write_bytes(b"\0needle\n")
    (root / "latin").write_bytes(b"needle caf\xe9\r\n")
    assert [each[2] for each in search(str(root), "needle", "*", False, 9)] == ["needle caf\ufffd"]


def test_of_a_long_line_the_piece_with_the_match_is_given(root: Path) -> None:
    (root / "long").write_text("a" * 100_000 + "needle" + "b" * 3_000_000 + "\nneedle\n")
    first, second = search(str(root), "needle", "long", False, 9)
    assert len(first[2]) == module.MAX_LINE
    assert "needle" in first[2]
    assert second[1:] == (2, "needle")


def test_what_comes_back_is_bounded_in_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    (root / "many").write_text(("needle" + "x" * 4000 + "\n") * 100)
    assert len(search(str(root), "needle", "*", False, 100)) == 3
    for number in range(200):
        (root / f"file{number}").touch()
    assert 0 < len(find(str(root), "file*", 1000)) < 200


def test_a_pipe_among_the_files_does_not_hold_a_search_up(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert len(search(str(root), "one", "*", False, 9)) == 3


def test_texts_are_replaced_and_counted(root: Path) -> None:
    (root / "a").write_bytes(b"one two one\r\ncaf\xe9 one")
    (root / "a").chmod(0o750)
    paths = [str(root / "a"), str(root / "read.me"), str(root / "src-more")]
    assert replace(paths, "one", "three", False) == [(paths[0], 3), (paths[2], 1)]
    assert (root / "a").read_bytes() == b"three two three\r\ncaf\xe9 three"
    assert (root / "a").stat().st_mode & 0o777 == 0o750
    assert (root / "read.me").read_text() == "nothing here\n"
    assert not list(root.glob(".holdfast*"))


def test_regular_expressions_are_replaced_with_their_groups(root: Path) -> None:
    path = str(root / "src" / "one.py")
    assert replace([path], r"import (\w+)", r"from \1 import path", True) == [(path, 1)]
    assert (root / "src" / "one.py").read_text().startswith("from os import path\n")
    for pattern, replacement in (("(", ""), ("os", r"\9"), ("os", r"\g<no>")):
        with pytest.raises(ValueError, match="is invalid"):
            replace([path], pattern, replacement, True)


def test_replacing_touches_no_link_no_folder_no_binary_and_nothing_where_one_is_missing(root: Path) -> None:
    (root / "binary").write_bytes(b"\0one")
    (root / "a").write_text("one")
    assert replace([str(root / "binary")], "one", "two", False) == []
    for wrong in ("out.py", "src", "nothing"):
        with pytest.raises(OSError, match=wrong):
            replace([str(root / "a"), str(root / wrong)], "one", "two", False)
    assert (root / "a").read_text() == "one"
    assert (root.parent / "outside.py").read_text() == "one outside\n"


def test_a_tree_is_removed_and_links_in_it_are_not_followed(root: Path) -> None:
    (root / "src" / "shut").mkdir()
    (root / "src" / "shut" / "file").touch()
    (root / "src" / "shut").chmod(0)
    remove_tree(str(root))
    assert [each.name for each in root.parent.iterdir()] == ["outside.py"]
    with pytest.raises(FileNotFoundError):
        remove_tree(str(root))


def test_a_link_to_a_tree_is_removed_alone(root: Path) -> None:
    remove_tree(str(root / "out"))
    remove_tree(str(root / "read.me"))
    assert (root.parent / "outside.py").exists()
    assert not (root / "out").is_symlink()


def test_a_tree_deeper_than_paths_descriptors_and_recursion_reach_is_removed(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    at = os.dup(top)
    for _ in range(3000):
        os.mkdir("folder", dir_fd=at)
        below = os.open("folder", os.O_RDONLY, dir_fd=at)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(at)
        at = below
    os.close(at)
    os.close(top)
    remove_tree(str(tmp_path / "folder"))
    assert list(tmp_path.iterdir()) == []


def test_the_module_works_alone() -> None:
    program = f"import runpy, sys; runpy.run_path({module.__file__!r}); print('re' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, timeout=240)
    assert done.returncode == 0
