"""Work comes home: merged three ways, nothing lost, nothing doubled, whoever is killed when."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.repositories.changed import Tree, changed
from tests.repositories.repository import ENVIRONMENT, commit, git, new_repository

from holdfast.api.errors.repositories import CannotApply
from holdfast.repositories.apply import Applied, Apply
from holdfast.repositories.git import Git
from holdfast.repositories.plain_folder import beside

LINES = "".join(f"line {number}\n" for number in range(12))
BASE: dict[str, str] = {"a.txt": LINES, "gone.txt": "old\n", "dir/b.txt": "b\n", "run.sh": "#!/bin/sh\n"}


def edited(text: str, number: int, new: str) -> str:
    return text.replace(f"line {number}\n", f"{new}\n")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    new_repository(folder, BASE)
    return folder


@pytest.fixture
def make(tmp_path: Path, top: Path) -> Callable[..., Apply]:
    made = iter(range(1000))

    def new(
        after: Tree, before: Tree = BASE, before_step: Callable[[str], None] = lambda step: None, again: bool = False
    ) -> Apply:
        source = {"commit": git(top, "rev-list", "--max-parents=0", "HEAD")}
        files = changed(tmp_path / f"contents-{next(made)}", before, after, source=source)
        return Apply(Git.of_user(ENVIRONMENT), top, files, again=again, before_step=before_step)

    return new


def files_of(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(top.rglob("*"))
        if ".git" not in path.relative_to(top).parts and (path.is_symlink() or path.is_file())
    }


AFTER: Tree = {
    "a.txt": edited(LINES, 2, "theirs"),
    "dir/b.txt": "b\n",
    "run.sh": ("x", "#!/bin/sh\n"),
    "new/deep/c.txt": "new\n",
    "link": ("link", "dir/b.txt"),
}


def test_changes_come_home_as_files_that_are_not_staged(top: Path, make: Callable[..., Apply]) -> None:
    done = make(AFTER).apply()
    assert set(done.changed) == {b"a.txt", b"gone.txt", b"run.sh", b"new/deep/c.txt", b"link"}
    assert files_of(top) == {
        "a.txt": edited(LINES, 2, "theirs"),
        "dir/b.txt": "b\n",
        "link": "dir/b.txt",
        "new/deep/c.txt": "new\n",
        "run.sh": "#!/bin/sh\n",
    }
    assert os.access(top / "run.sh", os.X_OK)
    assert git(top, "diff", "--cached") == ""
    assert git(top, "status", "--porcelain").split("\n") == [
        "M a.txt",
        " D gone.txt",
        " M run.sh",
        "?? link",
        "?? new/",
    ]


def test_applying_again_changes_nothing_even_after_more_work_of_the_user(top: Path, make: Callable[..., Apply]) -> None:
    make(AFTER).apply()
    assert make(AFTER).apply() == Applied((), (), 5)
    (top / "a.txt").write_text("all new\n")
    (top / "gone.txt").write_text("wanted after all\n")
    assert make(AFTER).apply() == Applied((), (), 5)
    assert (top / "a.txt").read_text() == "all new\n"


def test_after_another_turn_only_what_is_new_is_applied(top: Path, make: Callable[..., Apply]) -> None:
    make(AFTER).apply()
    (top / "a.txt").write_text(edited((top / "a.txt").read_text(), 9, "mine"))
    second = {**AFTER, "a.txt": edited(edited(LINES, 2, "theirs"), 5, "second turn")}
    del second["new/deep/c.txt"]
    second["gone.txt"] = "old\n"  # the agent has brought it back
    done = make(second).apply()
    assert set(done.changed) == {b"a.txt", b"new/deep/c.txt", b"gone.txt"}
    assert (top / "a.txt").read_text() == edited(edited(edited(LINES, 2, "theirs"), 5, "second turn"), 9, "mine")
    assert not (top / "new").exists()
    assert (top / "gone.txt").read_text() == "old\n"


def test_edits_of_both_are_merged_also_if_the_user_has_not_committed(top: Path, make: Callable[..., Apply]) -> None:
    (top / "a.txt").write_text(edited(LINES, 10, "mine"))
    make(AFTER).apply()
    assert (top / "a.txt").read_text() == edited(edited(LINES, 2, "theirs"), 10, "mine")


def test_a_workspace_with_uncommitted_work_comes_home_onto_it(top: Path, make: Callable[..., Apply]) -> None:
    mine = edited(LINES, 4, "not committed")
    (top / "a.txt").write_text(mine)
    before = {**BASE, "a.txt": mine}
    make({**before, "a.txt": mine.replace("not committed", "improved")}, before).apply()
    assert (top / "a.txt").read_text() == edited(LINES, 4, "improved")


def test_a_conflict_looks_as_git_makes_it(top: Path, make: Callable[..., Apply], tmp_path: Path) -> None:
    commit(top, {"a.txt": edited(LINES, 2, "mine"), "gone.txt": "changed\n"})
    done = make({"a.txt": edited(LINES, 2, "theirs"), "dir/b.txt": "b\n", "run.sh": "#!/bin/sh\n"}).apply()
    assert set(done.conflicts) == {b"a.txt", b"gone.txt"}
    text = (top / "a.txt").read_text()
    assert "<<<<<<< yours\nmine\n=======\ntheirs\n>>>>>>> thread t-1\n" in text
    assert git(top, "status", "--porcelain") == "UU a.txt\nUD gone.txt"
    assert (top / "gone.txt").read_text() == "changed\n"
    # As git itself would merge it, but for the names.
    git(top, "checkout", "--ours", "--", "a.txt")
    assert (top / "a.txt").read_text() == edited(LINES, 2, "mine")
    git(top, "checkout", "--theirs", "--", "a.txt")
    assert (top / "a.txt").read_text() == edited(LINES, 2, "theirs")


def test_open_conflicts_have_to_be_resolved_first_and_then_stay_resolved(top: Path, make: Callable[..., Apply]) -> None:
    commit(top, {"a.txt": edited(LINES, 2, "mine")})
    after = {**BASE, "a.txt": edited(LINES, 2, "theirs")}
    make(after).apply()
    assert make(after).apply() == Applied((), (), 1)
    with pytest.raises(CannotApply, match=r"a\.txt still has conflicts"):
        make({**BASE, "a.txt": edited(LINES, 2, "theirs, once more")}).apply()
    (top / "a.txt").write_text(edited(LINES, 2, "both"))
    git(top, "add", "a.txt")
    assert make(after).apply() == Applied((), (), 1)
    assert (top / "a.txt").read_text() == edited(LINES, 2, "both")


@pytest.mark.parametrize("state", ["uncommitted", "untracked", "ignored", "deleted"])
def test_what_is_not_committed_is_never_overwritten(top: Path, make: Callable[..., Apply], state: str) -> None:
    after: dict[str, str] = {**BASE, "a.txt": edited(LINES, 2, "theirs"), "dir/b.txt": "theirs\n"}
    match state:
        case "uncommitted":
            (top / "a.txt").write_text(edited(LINES, 2, "mine"))
        case "untracked":
            after["new.txt"] = "theirs\n"
            (top / "new.txt").write_text("mine\n")
        case "ignored":
            (top / ".git" / "info").mkdir(exist_ok=True)
            (top / ".git" / "info" / "exclude").write_text(".env\n")
            after[".env"] = "theirs\n"
            (top / ".env").write_text("mine\n")
        case "deleted":
            (top / "a.txt").unlink()
    was = files_of(top)
    with pytest.raises(CannotApply, match="not committed"):
        make(after).apply()
    assert files_of(top) == was  # not even the file without a conflict
    with pytest.raises(CannotApply, match="not committed"):
        make(after).check()


def test_check_tells_and_changes_nothing(top: Path, make: Callable[..., Apply]) -> None:
    was, index = files_of(top), (top / ".git" / "index").read_bytes()
    told = make(AFTER).check()
    assert len(told.changed) == 5
    assert files_of(top) == was
    assert (top / ".git" / "index").read_bytes() == index
    assert make(AFTER).apply() == told


def test_a_folder_in_the_place_of_a_file_is_left_there(top: Path, make: Callable[..., Apply]) -> None:
    (top / "new").write_text("a file of mine\n")
    with pytest.raises(CannotApply, match="cannot be written"):
        make(AFTER).apply()
    (top / "new").unlink()
    (top / "link").mkdir()
    (top / "link" / "mine").write_text("mine\n")
    with pytest.raises(CannotApply, match=r"link cannot be written: a folder"):
        make(AFTER).apply()
    assert (top / "a.txt").read_text() == LINES


def test_another_repository_is_refused(top: Path, tmp_path: Path) -> None:
    files = changed(tmp_path / "c", BASE, AFTER, source={"commit": "1" * 40})
    with pytest.raises(CannotApply, match="does not have commit 111111111111"):
        Apply(Git.of_user(ENVIRONMENT), top, files).apply()
    with pytest.raises(CannotApply, match="not in the working tree"):
        Apply(Git.of_user(ENVIRONMENT), tmp_path, files)


def test_binary_files_and_odd_names_come_home(top: Path, make: Callable[..., Apply]) -> None:
    odd = "ö \t'\"x\n.bin"
    make({**BASE, odd: b"\0\1\xff", "run.sh": b"\0now binary"}).apply()
    assert (top / odd).read_bytes() == b"\0\1\xff"
    assert (top / "run.sh").read_bytes() == b"\0now binary"


def test_crlf_stays_as_it_is(top: Path, make: Callable[..., Apply]) -> None:
    git(top, "config", "core.autocrlf", "true")
    (top / "w.txt").write_bytes(b"a\r\nb\r\n")
    before: Tree = {**BASE, "w.txt": b"a\r\nb\r\n"}
    make({**before, "w.txt": b"a\r\nB\r\n"}, before).apply()
    assert (top / "w.txt").read_bytes() == b"a\r\nB\r\n"


def test_two_working_trees_of_one_repository_are_apart(top: Path, make: Callable[..., Apply], tmp_path: Path) -> None:
    git(top, "worktree", "add", "-q", str(tmp_path / "second"))
    make(AFTER).apply()
    files = changed(tmp_path / "c", BASE, AFTER)
    done = Apply(Git.of_user(ENVIRONMENT), tmp_path / "second", files).apply()
    assert len(done.changed) == 5
    assert files_of(tmp_path / "second") == files_of(top)


def test_a_folder_takes_the_place_of_a_file_and_a_file_that_of_a_folder(top: Path, make: Callable[..., Apply]) -> None:
    after = {"a.txt": LINES, "gone.txt/inner.txt": "in\n", "dir": "no folder any more\n", "run.sh": "#!/bin/sh\n"}
    make(after).apply()
    assert files_of(top) == after
    assert make(after).apply().changed == ()


def test_a_folder_with_files_of_the_user_stays(top: Path, make: Callable[..., Apply]) -> None:
    (top / "dir" / "mine.txt").write_text("mine\n")
    with pytest.raises(CannotApply, match="dir cannot be written: a folder is in its place"):
        make({**{name: text for name, text in BASE.items() if name != "dir/b.txt"}, "dir": "file\n"}).apply()
    assert (top / "dir" / "b.txt").exists()


# --- discarded, and wanted again ---


@pytest.mark.parametrize("how", ["stash", "checkout", "branch"])
def test_what_the_user_discarded_whole_is_applied_again(top: Path, make: Callable[..., Apply], how: str) -> None:
    first = make(AFTER).apply()
    match how:
        case "stash":
            git(top, "stash", "--include-untracked")
        case "checkout":
            git(top, "checkout", "--", ".")
            git(top, "clean", "-fdq")
        case "branch":
            git(top, "checkout", "-q", "-b", "work")
            git(top, "add", "-A")
            git(top, "commit", "-q", "-m", "work")
            git(top, "checkout", "-q", "main")
    assert files_of(top) == BASE
    assert make(AFTER).check() == first
    assert make(AFTER).apply() == first
    assert (top / "a.txt").read_text() == edited(LINES, 2, "theirs")
    assert make(AFTER).apply() == Applied((), (), 5)


def test_what_the_user_discarded_in_part_stays_discarded_until_it_is_wanted_again(
    top: Path, make: Callable[..., Apply]
) -> None:
    make(AFTER).apply()
    git(top, "checkout", "--", "a.txt")
    (top / "link").unlink()
    (top / "new/deep/c.txt").write_text("mine\n")
    second = {**AFTER, "more.txt": "more\n"}
    done = make(second).apply()
    assert (done.changed, done.discarded) == ((b"more.txt",), (b"a.txt", b"link"))
    assert (top / "a.txt").read_text() == LINES
    assert make(second, again=True).check().changed == (b"a.txt", b"link")
    with pytest.raises(CannotApply, match=r"new/deep/c\.txt has changes that are not committed"):
        make({**second, "new/deep/c.txt": "theirs\n"}, again=True).apply()
    done = make(second, again=True).apply()
    assert (done.changed, done.discarded) == ((b"a.txt", b"link"), ())
    assert (top / "a.txt").read_text() == edited(LINES, 2, "theirs")
    assert (top / "new/deep/c.txt").read_text() == "mine\n"


# --- a folder without git ---


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    for name, text in BASE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def in_plain(folder: Path, tmp_path: Path, after: Tree, contents: str) -> Apply:
    git_beside = beside(Git.of_user(ENVIRONMENT), folder, tmp_path / "home" / "applied")
    return Apply(git_beside, folder, changed(tmp_path / contents, BASE, after))


def test_work_comes_home_to_a_folder_without_git(plain: Path, tmp_path: Path) -> None:
    done = in_plain(plain, tmp_path, AFTER, "c1").apply()
    assert set(done.changed) == {b"a.txt", b"gone.txt", b"run.sh", b"new/deep/c.txt", b"link"}
    assert not (plain / ".git").exists()
    assert not (plain / "gone.txt").exists()
    assert in_plain(plain, tmp_path, AFTER, "c2").apply() == Applied((), (), 5)
    (plain / "a.txt").write_text(edited((plain / "a.txt").read_text(), 9, "mine"))
    second = {**AFTER, "a.txt": edited(edited(LINES, 2, "theirs"), 5, "second turn")}
    assert in_plain(plain, tmp_path, second, "c3").apply().changed == (b"a.txt",)
    assert (plain / "a.txt").read_text() == edited(edited(edited(LINES, 2, "theirs"), 5, "second turn"), 9, "mine")


@pytest.mark.parametrize("mine", [edited(LINES, 2, "mine"), None])
def test_a_conflict_in_a_folder_without_git_changes_nothing(plain: Path, tmp_path: Path, mine: str | None) -> None:
    (plain / "a.txt").unlink() if mine is None else (plain / "a.txt").write_text(mine)
    was = files_of(plain)
    for attempt in ("c1", "c2"):
        with pytest.raises(CannotApply, match=r"a\.txt was changed here too, and there is no commit to go back to"):
            in_plain(plain, tmp_path, AFTER, attempt).apply()
        assert files_of(plain) == was


def test_a_folder_without_git_is_known_by_its_place_not_by_its_name(plain: Path, tmp_path: Path) -> None:
    in_plain(plain, tmp_path, AFTER, "c1").apply()
    (tmp_path / "alias").symlink_to(plain)
    assert in_plain(tmp_path / "alias", tmp_path, AFTER, "c2").apply() == Applied((), (), 5)
    other = tmp_path / "other" / "plain"
    other.mkdir(parents=True)
    for name, text in BASE.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(text)
    assert len(in_plain(other, tmp_path, AFTER, "c3").apply().changed) == 5


# --- kills ---

TWO_SIDES: Tree = {**AFTER, "a.txt": edited(edited(LINES, 2, "theirs"), 8, "theirs too")}


def steps_of(make: Callable[..., Apply]) -> list[str]:
    steps: list[str] = []
    make(TWO_SIDES, before_step=steps.append).apply()
    return steps


def killed_at(make: Callable[..., Apply], number: int) -> None:
    """Apply in a process that is killed before the nth step: nothing is cleaned up."""
    left = number

    def count(step: str) -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    apply = make(TWO_SIDES, before_step=count)
    child = os.fork()
    if not child:
        try:
            apply.apply()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


@pytest.mark.parametrize("number", range(8))
def test_whoever_is_killed_at_a_step_the_next_apply_completes_it(
    top: Path, make: Callable[..., Apply], number: int
) -> None:
    commit(top, {"a.txt": edited(LINES, 8, "mine")})  # a conflict, so that the index is written too
    killed_at(make, number)
    done = make(TWO_SIDES).apply()
    assert not done.skipped
    assert git(top, "status", "--porcelain").split("\n") == [
        "UU a.txt", " D gone.txt", " M run.sh", "?? link", "?? new/",
    ]  # fmt: skip
    text = (top / "a.txt").read_text()
    assert text.count("<<<<<<<") == 1
    assert "line 2" not in text
    assert not (top / ".git" / "holdfast-apply").exists()
    assert not [path for path in top.rglob(".holdfast*") if path.name != "holdfast-apply.lock"]


def test_the_kills_above_are_at_every_step(top: Path, make: Callable[..., Apply]) -> None:
    commit(top, {"a.txt": edited(LINES, 8, "mine")})
    steps = steps_of(make)
    assert steps[0] == "note"
    assert steps[-2:] == ["index", "noted"]
    assert len(steps) == 8, steps


def test_what_the_user_changes_after_a_kill_is_not_overwritten(top: Path, make: Callable[..., Apply]) -> None:
    killed_at(make, 2)
    (top / "run.sh").write_text("mine\n")
    (top / "link").write_text("mine, in the place of the link\n")
    with pytest.raises(CannotApply, match="link has changes that are not committed"):
        make(TWO_SIDES).apply()
    (top / "link").unlink()
    make(TWO_SIDES).apply()
    assert (top / "run.sh").read_text() == "mine\n"  # and it has become a program, as in the box
    assert os.access(top / "run.sh", os.X_OK)
    assert (top / "link").is_symlink()
