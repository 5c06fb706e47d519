from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from holdfast.api.errors.environments import SetupFailed
from holdfast.environments.inputs import NO_INPUTS, read_inputs


def archive(path: Path, *members: tuple[str, bytes | str, int]) -> Path:
    """Files with their content, and links with their target."""
    with tarfile.open(path, "w") as packed:
        for name, content, mode in members:
            member = tarfile.TarInfo(name)
            member.mode = mode
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                packed.addfile(member)
            else:
                member.size = len(content)
                packed.addfile(member, io.BytesIO(content))
    return path


def test_only_the_inputs_are_taken(tmp_path: Path) -> None:
    made = archive(tmp_path / "a", ("req.txt", b"x", 0o644), ("app/a.py", b"y", 0o755), ("other", b"z", 0o644))
    taken = read_inputs(made, ["req.txt", "app"])
    with tarfile.open(fileobj=io.BytesIO(taken.archive)) as packed:
        assert packed.getnames() == ["app/a.py", "req.txt"]


def test_the_digest_depends_on_names_contents_and_modes_only(tmp_path: Path) -> None:
    digests = [
        read_inputs(archive(tmp_path / str(number), *members), ["d"]).digest
        for number, members in enumerate(
            [
                (("d/a", b"1", 0o644), ("d/b", b"2", 0o644)),
                (("d/b", b"2", 0o600), ("x", b"", 0o644), ("d/a", b"1", 0o644)),
                (("d/a", b"1", 0o755), ("d/b", b"2", 0o644)),
                (("d/a", b"12", 0o644), ("d/b", b"", 0o644)),
            ]
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_link_is_no_input(tmp_path: Path) -> None:
    made = archive(tmp_path / "a", ("req.txt", "/etc/passwd", 0o777))
    with pytest.raises(SetupFailed, match=r"req\.txt is a link"):
        read_inputs(made, ["req.txt"])


@pytest.mark.parametrize("name", ["../req.txt", "/req.txt", "x/../../req.txt"])
def test_a_name_that_leads_out_is_not_taken(tmp_path: Path, name: str) -> None:
    made = archive(tmp_path / "a", (name, b"x", 0o644))
    with pytest.raises(SetupFailed, match="does not have"):
        read_inputs(made, ["req.txt"])


def test_a_missing_workspace_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="no workspace"):
        read_inputs(None, ["req.txt"])
    assert read_inputs(None, []) == NO_INPUTS


def test_what_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no archive")
    with pytest.raises(SetupFailed, match="cannot be read"):
        read_inputs(tmp_path / "a", ["x"])
