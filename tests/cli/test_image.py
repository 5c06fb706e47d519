"""`holdfast image`: directories and archives in, boxes of them, on a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.providers.local.rootfs import Tar, busybox

from holdfast.cli.exits import Exit


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root filesystem as a folder, and as archives beside it."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "busybox.tar").write_bytes(busybox().done())
    (folder / "tree").mkdir()
    subprocess.run(["tar", "-xf", "busybox.tar", "-C", "tree"], cwd=folder, check=True, timeout=240)
    (folder / "tree" / "etc" / "from").write_text("a directory")
    subprocess.run(["gzip", "-k", "busybox.tar"], cwd=folder, check=True, timeout=240)
    return folder


def test_a_directory_becomes_an_image_and_a_box_begins_with_it(box_cli: Cli, directory: Path) -> None:
    made = box_cli("image", "import", str(directory / "tree"), "--name", "cli/tree:1")
    assert (made.exit, made.out, made.err) == (0, "cli/tree:1\n", "")
    box = box_cli("box", "create", "--image", "cli/tree:1").out.strip()
    assert box_cli("box", "exec", box, "--", "cat", "/etc/from").out == "a directory"
    shown = box_cli("image", "show", "cli/tree:1", "--json").json()
    assert (shown["name"], shown["config"]) == ("cli/tree:1", {"env": {}, "workdir": None, "user": None})
    assert "  workdir " in box_cli("image", "show", "cli/tree:1").out
    assert "cli/tree:1" in box_cli("image", "list", "-q").out.splitlines()
    assert "cli/tree:1" in box_cli("image", "list").out
    removed = box_cli("image", "remove", "cli/tree:1", "--yes", "--json").json()
    assert removed["removed"]
    assert box_cli("box", "exec", box, "--", "cat", "/etc/from").out == "a directory"
    assert box_cli("box", "delete", box, "--yes").exit == 0


def test_an_archive_gives_its_name_where_none_is_given(box_cli: Cli, directory: Path) -> None:
    assert box_cli("image", "import", str(directory / "busybox.tar.gz")).out == "busybox\n"
    names = [each["name"] for each in box_cli("image", "list", "--json").json()["images"]]
    assert names == ["busybox"]
    assert box_cli("image", "remove", "busybox", "--yes").exit == 0
    assert "no images" in box_cli("image", "list").out + box_cli("image", "list").err


def test_what_cannot_be_says_what_to_do(box_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "evil.tar").write_bytes(Tar().file("../evil").done())
    evil = box_cli("image", "import", str(tmp_path / "evil.tar"))
    assert evil.exit != 0
    assert "leads out of the image" in evil.err
    missing = box_cli("image", "import", str(tmp_path / "nothing.tar"))
    assert (missing.exit, "does not exist" in missing.err) == (Exit.USAGE, True)
    assert "needs a name" in box_cli("image", "import", "-").err
    unknown = box_cli("image", "show", "nothing")
    assert "there is no local image nothing" in unknown.err
    assert "holdfast image list" in unknown.err
    box = box_cli("box", "create", "--image", "nothing")
    assert "there is no local image nothing" in box.err
