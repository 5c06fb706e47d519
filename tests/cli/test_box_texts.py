"""What the box commands make of words and bytes, before any box is asked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.api.errors.boxes import BoxStopped, BoxUnreachable
from holdfast.boxes import HostMount, Step, VolumeMount
from holdfast.cli.box.commands import choose_lifetime
from holdfast.cli.box.files import Here, InBox, Piped, Place, merge, parse_place
from holdfast.cli.box.health import step_lines
from holdfast.cli.box.spec import parse_box_labels, parse_env, parse_mount, parse_volume, read_env_file
from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.parsing.parser import arrange
from holdfast.cli.terminal.pipes import InputPipe, OutputPipe
from holdfast.cli.terminal.raw_mode import EscapeKeys, Modes, without_questions
from holdfast.cli.terminal.sizes import describe_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("64k", 65536), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1 tb", 1 << 40)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "2X", "1,5G", "2GG"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (1536, "1.5 KB"),
        (10 << 20, "10 MB"),
        ((1 << 30) - 1, "1 GB"),
        (5 << 40, "5 TB"),
        (2000 << 40, "2000 TB"),
    ],
)
def test_sizes_are_told(size: int, text: str) -> None:
    assert describe_size(size) == text


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        ("b-1 -- ls -la", "-- b-1 ls -la"),
        ("b-1 ls -la --json", "-- b-1 ls -la --json"),
        ("--cwd /tmp b-1 ls", "--cwd /tmp -- b-1 ls"),
        ("b-1 --cwd /tmp -t -- ls --cwd x", "--cwd /tmp -t -- b-1 ls --cwd x"),
        ("b-1 --cwd=/tmp ls", "--cwd=/tmp -- b-1 ls"),
        ("b-1 -it bash", "-it -- b-1 bash"),
        ("-- b-1 ls", "-- b-1 ls"),
        ("b-1 -- -- x", "-- b-1 -- x"),
        ("b-1 -", "-- b-1 -"),
        ("b-1", "-- b-1"),
        ("", "--"),
        ("b-1 --cwd", "--cwd -- b-1"),
    ],
)
def test_the_command_of_the_box_keeps_its_own_options(given: str, arranged: str) -> None:
    assert arrange(given.split(), {"--cwd", "-e"}) == arranged.split()


def test_variables_are_given_or_taken_from_the_caller() -> None:
    assert parse_env(["A=1", "B=", "C=x=y", "D"], {"D": "mine"}) == {"A": "1", "B": "", "C": "x=y", "D": "mine"}
    with pytest.raises(CommandError, match="SECRET is not set in your environment"):
        parse_env(["SECRET"], {})
    with pytest.raises(CommandError, match="is not a variable"):
        parse_env(["=1"], {})


def test_variables_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a comment\n\nA=1\nB=two words # kept\nC\n")
    assert read_env_file(file, {"C": "mine"}) == {"A": "1", "B": "two words # kept", "C": "mine"}
    with pytest.raises(CommandError, match="no such file"):
        read_env_file(tmp_path / "none", {})


def test_labels_take_either_sign() -> None:
    given = ["team:core", "url=a:b", "when:x=y", "urgent"]
    assert parse_box_labels(given) == {"team": "core", "url": "a:b", "when": "x=y", "urgent": ""}
    with pytest.raises(CommandError, match="':x' is not a label"):
        parse_box_labels([":x"])


def test_volumes_and_mounts_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_volume("cache:/c") == VolumeMount("cache", "/c")
    assert parse_volume("cache/a/b:/c/:ro") == VolumeMount("cache", "/c", "a/b", read_only=True)
    assert parse_mount("/src:/s") == HostMount("/src", "/s")
    assert parse_mount("src:/s:rw") == HostMount(str(tmp_path / "src"), "/s", read_only=False)
    for text in ("cache", "cache:relative", ":/c", "cache:/c:rx"):
        with pytest.raises(CommandError, match="is not a mount"):
            parse_volume(text)


def test_a_box_has_one_lifetime() -> None:
    assert choose_lifetime(None, ephemeral=False, one_shot=False, idle=None) == "shared"
    assert choose_lifetime(None, ephemeral=False, one_shot=False, idle="5m") == "ephemeral"
    assert choose_lifetime("ephemeral", ephemeral=True, one_shot=False, idle="5m") == "ephemeral"
    assert choose_lifetime(None, ephemeral=False, one_shot=True, idle=None) == "one-shot"
    with pytest.raises(CommandError, match="one lifetime"):
        choose_lifetime("shared", ephemeral=True, one_shot=False, idle=None)
    with pytest.raises(CommandError, match="--idle is only for ephemeral"):
        choose_lifetime("shared", ephemeral=False, one_shot=False, idle="5m")
    assert choose_lifetime(None, ephemeral=False, one_shot=False, idle="5m", on_idle="hibernate") == "shared"
    assert choose_lifetime(None, ephemeral=False, one_shot=False, idle=None, on_idle="pause") == "shared"
    with pytest.raises(CommandError, match="--on-idle keep"):
        choose_lifetime(None, ephemeral=False, one_shot=False, idle="5m", on_idle="keep")
    with pytest.raises(CommandError, match="deleted after its work"):
        choose_lifetime(None, ephemeral=False, one_shot=True, idle=None, on_idle="delete")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("b-1:a/b", InBox("b-1", "a/b")),
        ("b-1:", InBox("b-1", ".")),
        ("b-1:/x:y", InBox("b-1", "/x:y")),
        ("-", Piped()),
        ("a/b:c", Here(Path("a/b:c"), "a/b:c")),
        ("./a:b", Here(Path("a:b"), "./a:b")),
        ("folder/", Here(Path("folder"), "folder/")),
    ],
)
def test_places_are_in_a_box_or_here(text: str, place: Place) -> None:
    assert parse_place(text) == place


def test_what_comes_from_a_box_is_not_written_through_links_here(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "kept").write_text("mine")
    target, arrived = tmp_path / "target", tmp_path / "arrived"
    (target / "folder").mkdir(parents=True)
    (target / "folder" / "old").write_text("old")
    (target / "file").symlink_to(secret / "kept")
    (arrived / "folder").mkdir(parents=True)
    (arrived / "folder" / "new").write_text("new")
    (arrived / "file").write_text("theirs")
    merge(arrived, target)
    assert sorted(each.name for each in (target / "folder").iterdir()) == ["new", "old"]
    assert (target / "file").read_text() == "theirs"
    assert (secret / "kept").read_text() == "mine"
    (target / "link").symlink_to(secret)
    (arrived / "link").mkdir()
    (arrived / "link" / "kept").write_text("theirs")
    with pytest.raises(CommandError, match="is not a local folder"):
        merge(arrived, target)
    assert (secret / "kept").read_text() == "mine"


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"~."], b"", True),
        ([b"ls\r", b"~", b"."], b"ls\r", True),
        ([b"~/bin\r"], b"~/bin\r", False),
        ([b"~~."], b"~.", False),
        ([b"x~."], b"x~.", False),
        ([b"~\r~."], b"~\r", True),
    ],
)
def test_only_tilde_and_dot_at_the_beginning_of_a_line_leave(typed: list[bytes], passed: bytes, leaves: bool) -> None:
    keys = EscapeKeys()
    fed = [keys.feed(each) for each in typed]
    assert b"".join(data for data, _ in fed) == passed
    assert any(leave for _, leave in fed) is leaves


def test_what_a_program_did_to_the_terminal_is_undone() -> None:
    modes = Modes()
    modes.track(b"plain")
    assert modes.undo() == b""
    modes.track(b"\x1b[?1049h\x1b[?25l text \x1b[?1000;1006h\x1b[?2004h")
    modes.track(b"\x1b[?2004l")
    assert modes.undo() == b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[0m"
    assert modes.full_screen
    assert modes.redo() == b"\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1006h"
    modes.track(b"\x1b[?1049l\x1b[?25h\x1b[?1000;1006l")
    assert not modes.full_screen
    assert modes.undo() == b""


def test_what_is_shown_again_asks_the_terminal_nothing() -> None:
    asked = b"a\x1b[6n\x1b[c\x1b[>c\x1b[?1;2$p\x1b]11;?\x07\x1b]10;?\x1b\\\x1bP+q544e\x1b\\\x1b[>q\x1b[?u\x1b[18tb"
    assert without_questions(asked) == b"ab"
    kept = b"\x1b[1;31mred\x1b[0m\x1b[2J\x1b[H\x1b[?25h\x1b]0;title\x07\x1b[3;4Hx\x1b[2 q"
    assert without_questions(kept) == kept


def test_steps_are_aligned_and_say_what_to_do() -> None:
    steps = [Step("server", True, 1.234, "here"), Step("the guest", False, 1000, "silent", "start it")]
    first, second, third = (
        "".join(part if isinstance(part, str) else part.text for part in line) for line in step_lines(steps)
    )
    assert first == "  ✓ server          1.23 ms  here"
    assert second == "  ✗ the guest    1000.00 ms  silent"
    assert third.strip() == "next: start it"
    assert third.index("next") == second.index("silent")


@pytest.mark.anyio
async def test_a_slow_reader_holds_up_the_writer_and_gets_every_byte() -> None:
    ours, theirs = os.pipe()
    out = OutputPipe(theirs)
    data = os.urandom(5 << 20)
    seen = bytearray()

    async def write() -> None:
        for start in range(0, len(data), 300_000):
            await out.write(data[start : start + 300_000])
        await out.flush()
        os.close(theirs)

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0)
    assert not writing.done()
    async for piece in InputPipe(ours):
        seen += piece
    await writing
    os.close(ours)
    assert bytes(seen) == data


@pytest.mark.anyio
async def test_a_reader_that_left_is_told_to_the_writer() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    out = OutputPipe(theirs)
    await out.write(b"x")
    with pytest.raises(BrokenPipeError):
        await out.flush()
    os.close(theirs)


@pytest.mark.anyio
async def test_input_is_read_as_it_comes_until_its_end() -> None:
    ours, theirs = os.pipe()
    inlet = InputPipe(ours)
    os.write(theirs, b"one")
    assert await inlet.read() == b"one"
    os.write(theirs, b"two")
    os.close(theirs)
    assert await inlet.read() == b"two"
    assert await inlet.read() == b""
    os.close(ours)


def test_what_to_do_next_about_a_box_names_it() -> None:
    assert command_error(BoxStopped("box b-1abc is stopped")).next_step == "holdfast box start b-1abc"
    assert command_error(BoxUnreachable("a box is away")).next_step == "find out why with holdfast box diagnose BOX"
    assert command_error(BoxStopped("box b-1 is stopped", hint="wait")).next_step == "wait"
