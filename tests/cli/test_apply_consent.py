"""Consent for files that run without being started, where links give them another path."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.repositories.changed import Tree, changed
from tests.repositories.repository import ENVIRONMENT, commit, git, new_repository

from holdfast.cli.errors import CommandError
from holdfast.cli.run.changes.apply import consent
from holdfast.repositories.git import Git
from holdfast.repositories.surroundings import CommittedFiles, FolderOnDisk, Surroundings


@pytest.fixture(params=["on disk", "committed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def around(kind: str, top: Path) -> Surroundings:
    return FolderOnDisk(top) if kind == "on disk" else CommittedFiles(Git.of_user(ENVIRONMENT), top, "HEAD")


@pytest.mark.parametrize(
    ("there", "after"),
    [
        ({}, {".vscode": ("link", "assets/v"), "assets/v/tasks.json": "{}"}),
        ({".envrc": "config/envrc"}, {"config/envrc": "id\n"}),
        ({"app/.claude": "../shared"}, {"shared/settings.json": "{}"}),
    ],
)
def test_a_link_takes_no_file_past_the_question(
    kind: str, there: dict[str, str], after: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "project"
    new_repository(top, {"a.txt": "a\n"})
    for path, target in there.items():
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).symlink_to(target)
    git(top, "add", "-A")
    commit(top, {"b.txt": "b\n"})
    files = changed(tmp_path / "c", {}, after)
    with pytest.raises(CommandError, match="without being started"):
        consent(files, around(kind, top), "holdfast apply t-1", yes=False, prefix=b"")
    assert all(path in capsys.readouterr().err for path in [*after][:1])
    fine = changed(tmp_path / "c2", {}, {"config/other": "x\n"})
    consent(fine, around(kind, top), "holdfast apply t-1", yes=False, prefix=b"")


def test_the_folder_of_the_workspace_belongs_to_the_path(tmp_path: Path) -> None:
    new_repository(tmp_path / "project", {".github/CODEOWNERS": "x\n"})
    files = changed(tmp_path / "c", {}, {"workflows/ci.yml": "on: push\n"})
    with pytest.raises(CommandError, match="without being started"):
        consent(files, FolderOnDisk(tmp_path / "project"), "holdfast apply t-1", yes=False, prefix=b".github/")


def test_a_link_with_the_whole_path_of_a_file_in_the_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "a/config").mkdir(parents=True)
    (tmp_path / "a/sub").mkdir()
    (tmp_path / "a/sub/.envrc").symlink_to(tmp_path / "a/config/envrc")
    files = changed(tmp_path / "c", {}, {"config/envrc": "id\n"})
    with pytest.raises(CommandError, match="without being started"):
        consent(files, FolderOnDisk(tmp_path / "a"), "holdfast apply t-1", yes=False, prefix=b"")
