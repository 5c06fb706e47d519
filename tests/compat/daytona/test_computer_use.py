"""Computer use by the SDK of Daytona, in a sandbox with a real screen: Xvfb, fluxbox, xdotool and xterm."""

from __future__ import annotations

import base64
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from daytona import Daytona, DaytonaError, Sandbox, SessionExecuteRequest
from daytona.common.computer_use import ScreenshotOptions, ScreenshotRegion
from daytona.common.daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams
from tests.compat.daytona.test_every_method import HAS_DESKTOP

from holdfast.compat.daytona.http.errors import ApiError
from holdfast.compat.daytona.toolbox.desktop import document_in, programs_of, size_in
from holdfast.compat.daytona.toolbox.mouse_keyboard import held, key_of, keys_of, modifiers_of, move_to, parts_of

T = TypeVar("T")
TYPED = "Grüße, $HOME & 'quotes' " + "".join(map(chr, range(0x430, 0x450)))
"""With more letters than a keyboard has free keys at once."""
needs_desktop = pytest.mark.skipif(not HAS_DESKTOP, reason="no Xvfb, xdotool or Pillow here")
needs_xterm = pytest.mark.skipif(shutil.which("xterm") is None, reason="no xterm here")


@pytest.fixture(scope="module")
def desk(daytona: Daytona) -> Iterator[Sandbox]:
    """A sandbox whose desktop is started. Its screen is smaller than the usual one."""
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(env_vars={"VNC_RESOLUTION": "640x480"}))
    started = sandbox.computer_use.start()
    assert started.status is not None
    assert started.status["xvfb"].running
    yield sandbox
    sandbox.delete()


def wait_until(look: Callable[[], T], seconds: float) -> T:
    """What a look finds, as soon as it finds something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def windows_of(desk: Sandbox) -> list[Any]:
    return desk.computer_use.display.get_windows().windows or []


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def picture(shot: object) -> bytes:
    data = base64.b64decode(shot.screenshot)  # type: ignore[attr-defined]
    assert shot.size_bytes == len(data)  # type: ignore[attr-defined]
    return data


@pytest.mark.box
@pytest.mark.slow
@needs_desktop
class TestOnADesktop:
    def test_it_is_started_once_and_says_so(self, desk: Sandbox) -> None:
        desk.computer_use.start()
        assert desk.computer_use.get_status().status == "active"
        for name in ("xvfb", "fluxbox"):
            assert desk.computer_use.get_process_status(name).running
        running = desk.process.exec("ps ax -o args | grep -c '^Xvfb'").result
        assert running.strip() == "1"
        with pytest.raises(DaytonaError, match="there is no process"):
            desk.computer_use.get_process_status("nothing")

    def test_pictures_have_the_size_and_the_format_that_was_asked_for(self, desk: Sandbox) -> None:
        shots = desk.computer_use.screenshot
        [screen] = desk.computer_use.display.get_info().displays or []
        assert (screen.width, screen.height, screen.is_active) == (640, 480, True)
        whole = picture(shots.take_full_screen(show_cursor=True))
        assert size_of(whole) == (640, 480)
        part = ScreenshotRegion(x=600, y=400, width=100, height=50)
        assert size_of(picture(shots.take_region(part))) == (40, 50)  # what there is of it
        assert picture(shots.take_compressed()).startswith(b"\xff\xd8\xff")
        webp = picture(shots.take_compressed_region(part, ScreenshotOptions(fmt="webp", quality=10, show_cursor=True)))
        assert webp[8:12] == b"WEBP"
        half = picture(shots.take_compressed(ScreenshotOptions(fmt="png", scale=0.5)))
        assert size_of(half) == (320, 240)
        for region in (ScreenshotRegion(x=5000, y=0, width=1, height=1), ScreenshotRegion(x=0, y=0, width=0, height=1)):
            with pytest.raises(DaytonaError) as refused:
                shots.take_region(region)
            assert refused.value.status_code == 400
        with pytest.raises(DaytonaError, match="not a format"):
            shots.take_compressed(ScreenshotOptions(fmt="bmp"))

    def test_the_mouse_goes_where_it_is_sent(self, desk: Sandbox) -> None:
        mouse = desk.computer_use.mouse
        for at in (mouse.move(12, 34), mouse.down(12, 34), mouse.up(12, 34)):
            assert (at.x, at.y) == (12, 34)
        dragged = mouse.drag(10, 20, 110, 120, modifiers=["shift"])
        assert (dragged.x, dragged.y) == (110, 120)
        at = mouse.get_position()
        assert (at.x, at.y) == (110, 120)
        assert mouse.scroll(50, 60, "left", 2, modifiers=["ctrl"])
        shot = desk.computer_use.screenshot.take_full_screen()
        assert shot.cursor_position is not None
        assert (shot.cursor_position.x, shot.cursor_position.y) == (50, 60)
        for bad in (lambda: mouse.move(-1, 5), lambda: mouse.click(1, 1, modifiers=["nothing"])):
            with pytest.raises(DaytonaError) as refused:
                bad()
            assert refused.value.status_code == 400

    @needs_xterm
    def test_what_is_typed_arrives_in_the_window_that_was_clicked(self, desk: Sandbox) -> None:
        desk.process.create_session("typing")
        command = "DISPLAY=:1 xterm -T typist -geometry 60x10+20+40 -e sh -c 'cat > /tmp/typed; echo > /tmp/typed-all'"
        desk.process.execute_session_command("typing", SessionExecuteRequest(command=command, run_async=True))
        [window] = wait_until(lambda: [each for each in windows_of(desk) if each.title == "typist"], seconds=20)
        assert window.width
        desk.computer_use.mouse.click((window.x or 0) + 40, (window.y or 0) + 40)
        keyboard = desk.computer_use.keyboard
        keyboard.type(TYPED)
        keyboard.press("enter")
        keyboard.press("a", modifiers=["shift"])
        keyboard.down("shift")
        keyboard.press("b")
        keyboard.up("shift")
        keyboard.press("/")
        keyboard.press("Return")
        keyboard.hotkey("ctrl+d")
        wait_until(lambda: "typed-all" in desk.process.exec("ls /tmp").result, seconds=20)
        assert desk.fs.download_file("/tmp/typed").decode() == f"{TYPED}\nAB/\n"
        for key in ("no-such-key", "NoSuchKey", "--help"):
            with pytest.raises(DaytonaError) as refused:
                keyboard.press(key)
            assert refused.value.status_code == 400

    def test_a_recording_is_a_film_that_can_be_fetched(self, desk: Sandbox, tmp_path: Path) -> None:
        recording = desk.computer_use.recording
        begun = recording.start(label="first")
        assert (begun.status, begun.file_name.endswith("-first.avi")) == ("recording", True)
        with pytest.raises(DaytonaError) as refused:
            recording.start()
        assert refused.value.status_code == 409
        with pytest.raises(DaytonaError) as refused:
            recording.delete(begun.id)
        assert refused.value.status_code == 409
        wait_until(lambda: (recording.get(begun.id).size_bytes or 0) > 1000, seconds=20)
        ended = recording.stop(begun.id)
        assert (ended.status, ended.end_time is not None) == ("completed", True)
        recording.download(begun.id, str(tmp_path / "film.avi"))
        film = (tmp_path / "film.avi").read_bytes()
        assert (film[:4], film[8:12], len(film)) == (b"RIFF", b"AVI ", struct.unpack("<I", film[4:8])[0] + 8)
        [frames] = struct.unpack("<I", film[48:52])
        assert frames == film.count(b"\xff\xd8\xff") > 0
        assert [each.id for each in recording.list().recordings] == [begun.id]
        recording.delete(begun.id)
        assert recording.list().recordings == []
        for id in (begun.id, "../../etc/passwd", "x"):
            with pytest.raises(DaytonaError) as refused:
                recording.get(id)
            assert refused.value.status_code == 404

    def test_a_dead_program_is_told_and_restarted(self, desk: Sandbox) -> None:
        screen = desk.computer_use
        desk.process.exec("pkill -x fluxbox")
        wait_until(lambda: screen.get_process_status("fluxbox").running is False, seconds=10)
        assert "fluxbox" in (screen.restart_process("fluxbox").message or "")
        assert screen.get_process_status("fluxbox").running
        assert screen.restart_process("xvfb").process_name == "xvfb"
        assert screen.mouse.get_position() is not None
        assert isinstance(screen.get_process_logs("xvfb").logs, str)
        assert isinstance(screen.get_process_errors("fluxbox").errors, str)
        screen.stop()
        assert screen.get_status().status == "inactive"
        with pytest.raises(DaytonaError, match="is not started") as refused:
            screen.mouse.get_position()
        assert refused.value.status_code == 503
        screen.start()


@pytest.mark.box
@pytest.mark.slow
@needs_desktop
def test_a_box_that_lies_about_its_screen_fails_its_own_requests_only(desk: Sandbox) -> None:
    """The python3 of a box is the box's, and may say anything."""
    fake = "/home/daytona/.local/bin/python3"
    for says in ('echo \'{"size": 5, "x": "a", "y": 1e99}\'', "echo '['", "head -c 40000000 /dev/zero", "exit 3"):
        desk.fs.upload_file(f"#!/bin/sh\ncat > /dev/null &\n{says}\n".encode(), fake)
        desk.fs.set_file_permissions(fake, mode="755")
        if desk.process.exec("command -v python3").result.strip() != fake:
            pytest.skip("the PATH of sandboxes does not begin with their own programs")
        with pytest.raises(DaytonaError) as refused:
            desk.computer_use.screenshot.take_full_screen()
        assert refused.value.status_code == 500
    desk.fs.delete_file(fake)
    assert desk.computer_use.screenshot.take_full_screen().size_bytes


@pytest.mark.box
@pytest.mark.slow
def test_an_image_without_a_screen_says_what_is_missing(daytona: Daytona, tiny_image: str) -> None:
    sandbox = daytona.create(CreateSandboxFromImageParams(image=tiny_image))
    try:
        with pytest.raises(
            DaytonaError, match=r"has no Xvfb, xdotool, python3.*holdfast image build workstation"
        ) as no:
            sandbox.computer_use.start()
        assert no.value.status_code == 501
        assert sandbox.computer_use.get_status().status == "inactive"
        with pytest.raises(DaytonaError, match="is not started"):
            sandbox.computer_use.mouse.move(1, 1)
    finally:
        sandbox.delete()


# --- decisions ---


@pytest.mark.parametrize(
    ("name", "key"),
    [("Enter", "Return"), ("esc", "Escape"), ("a", "a"), ("A", "A"), ("/", "U002F"), ("ü", "U00FC"), ("F5", "F5")],
)
def test_keys_are_called_as_x_calls_them(name: str, key: str) -> None:
    assert key_of(name) == key


def test_combinations_and_modifiers() -> None:
    assert keys_of("ctrl+shift+t") == "ctrl+shift+t"
    assert keys_of("cmd + v") == "super+v"
    assert keys_of("ctrl++") == "ctrl+U002B"
    assert modifiers_of(["Control", "ctrl", "option"]) == ["ctrl", "alt"]
    assert held(["shift"], "click", "1") == ["keydown", "shift", "click", "1", "keyup", "shift"]
    assert held(None, "click", "1") == ["click", "1"]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: key_of("--file"),
        lambda: key_of("a b"),
        lambda: keys_of("ctrl+--window"),
        lambda: modifiers_of(["hyper"]),
        lambda: move_to(1, None),
    ],
)
def test_what_is_no_key_never_reaches_xdotool(bad: Callable[[], object]) -> None:
    with pytest.raises(ApiError) as refused:
        bad()
    assert refused.value.status == 400


def test_a_text_is_typed_in_parts_that_a_keyboard_has_keys_for() -> None:
    text = "plain " + "".join(map(chr, range(0x400, 0x440))) + " plain"
    assert "".join(parts_of(text)) == text
    assert max(len({each for each in part if not each.isascii()}) for part in parts_of(text)) == 16
    assert parts_of("") == []
    assert parts_of("a" * 1000) == ["a" * 1000]


def test_the_size_of_the_screen_is_a_size_or_the_usual_one() -> None:
    assert size_in({"VNC_RESOLUTION": "1920x1080"}) == "1920x1080"
    for odd in ("1x1", "99999x1", "10x10 -ac", ""):
        assert size_in({"VNC_RESOLUTION": odd}) == "1024x768"
    assert "640x480x24" in programs_of("640x480")[0].argv


@pytest.mark.parametrize("output", [b"", b"[]", b"5", b"{", b"[" * 100_000, b"\xff\n{}"])
def test_what_is_no_document_is_empty(output: bytes) -> None:
    assert document_in(output) == {}
