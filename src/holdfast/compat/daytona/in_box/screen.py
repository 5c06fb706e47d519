"""Looks at the screen of a sandbox, for computer use: its size, its windows, pictures and recordings of it.

Runs inside a box, by its own Python 3.9 or newer, and calls the libraries of X there, which come with Xvfb. PNG needs
no more than that. JPEG, WebP and recordings need Pillow. The first line of the output is JSON, and the picture follows.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import struct
import sys
import time
import zlib
from ctypes import POINTER, Structure, byref, c_int, c_long, c_short, c_uint, c_ulong, c_ushort, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_ALL_PLANES = 0xFFFFFFFF
_Z_PIXMAP = 2
_MOST_WINDOWS = 500
_READ_SECONDS = 0.5
_FRAMES_PER_SECOND = 4
_MOST_FRAMES = _FRAMES_PER_SECOND * 3600
_MOST_BYTES = 512 << 20


class _Image(Structure):
    """The beginning of an XImage."""

    _fields_ = [
        ("width", c_int),
        ("height", c_int),
        ("xoffset", c_int),
        ("format", c_int),
        ("data", c_void_p),
        ("byte_order", c_int),
        ("bitmap_unit", c_int),
        ("bitmap_bit_order", c_int),
        ("bitmap_pad", c_int),
        ("depth", c_int),
        ("bytes_per_line", c_int),
        ("bits_per_pixel", c_int),
    ]


class _Cursor(Structure):
    """The beginning of an XFixesCursorImage."""

    _fields_ = [
        ("x", c_short),
        ("y", c_short),
        ("width", c_ushort),
        ("height", c_ushort),
        ("xhot", c_ushort),
        ("yhot", c_ushort),
        ("cursor_serial", c_ulong),
        ("pixels", POINTER(c_ulong)),
    ]


class _Attributes(Structure):
    """The beginning of XWindowAttributes, and room for the rest."""

    _fields_ = [
        ("x", c_int),
        ("y", c_int),
        ("width", c_int),
        ("height", c_int),
        ("rest", c_long * 24),
    ]


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def fail(code: str, message: str) -> NoReturn:
    say({"error": code, "message": message})
    sys.exit(0)


class Screen:
    """A connection to the X server that DISPLAY names."""

    def __init__(self, wait: float = 0) -> None:
        try:
            self.x = ctypes.CDLL("libX11.so.6")
        except OSError:
            fail("missing", "libX11.so.6")
        self.x.XOpenDisplay.restype = c_void_p
        for name in ("XDefaultRootWindow", "XInternAtom"):
            getattr(self.x, name).restype = c_ulong
        self.x.XGetImage.restype = POINTER(_Image)
        until = time.monotonic() + wait
        display = self.x.XOpenDisplay(None)
        while not display:
            if time.monotonic() > until:
                fail("closed", "the screen does not answer")
            time.sleep(0.05)
            display = self.x.XOpenDisplay(None)
        self.display = c_void_p(display)
        self.root = c_ulong(self.x.XDefaultRootWindow(self.display))

    def size(self) -> tuple[int, int]:
        return self.x.XDisplayWidth(self.display, 0), self.x.XDisplayHeight(self.display, 0)

    def pointer(self) -> tuple[int, int]:
        root, child, x, y, inner_x, inner_y, mask = c_ulong(), c_ulong(), c_int(), c_int(), c_int(), c_int(), c_uint()
        self.x.XQueryPointer(
            self.display, self.root, byref(root), byref(child), byref(x), byref(y), byref(inner_x), byref(inner_y),
            byref(mask),
        )  # fmt: skip
        return x.value, y.value

    # --- pictures ---

    def picture(self, x: int, y: int, width: int, height: int) -> bytes:
        """Returns a part of the screen: three bytes for each pixel, red, green and blue."""
        found = self.x.XGetImage(
            self.display, self.root, c_int(x), c_int(y), c_uint(width), c_uint(height), c_ulong(_ALL_PLANES), _Z_PIXMAP
        )
        if not found:
            fail("failed", "the screen cannot be read")
        image = found.contents
        if image.bits_per_pixel != 32:
            fail("failed", "the screen has %d bits for each pixel" % image.bits_per_pixel)
        raw = ctypes.string_at(image.data, image.bytes_per_line * height)
        if image.bytes_per_line != width * 4:
            raw = b"".join(raw[line * image.bytes_per_line :][: width * 4] for line in range(height))
        self.x.XDestroyImage(found)
        rgb = bytearray(width * height * 3)
        rgb[0::3], rgb[1::3], rgb[2::3] = raw[2::4], raw[1::4], raw[0::4]
        return bytes(rgb)

    def with_cursor(self, picture: bytes, x: int, y: int, width: int, height: int) -> bytes:
        """Returns the picture with the cursor, which is not on the screen itself."""
        try:
            fixes = ctypes.CDLL("libXfixes.so.3")
        except OSError:
            return picture
        fixes.XFixesGetCursorImage.restype = POINTER(_Cursor)
        fixes.XFixesGetCursorImage.argtypes = [c_void_p]
        found = fixes.XFixesGetCursorImage(self.display)
        if not found:
            return picture
        cursor, rgb = found.contents, bytearray(picture)
        left, top = cursor.x - cursor.xhot - x, cursor.y - cursor.yhot - y
        for line in range(cursor.height):
            for column in range(cursor.width):
                at_x, at_y = left + column, top + line
                pixel = cursor.pixels[line * cursor.width + column] & 0xFFFFFFFF
                alpha = pixel >> 24
                if alpha and 0 <= at_x < width and 0 <= at_y < height:
                    place = (at_y * width + at_x) * 3
                    for index, shift in enumerate((16, 8, 0)):
                        behind = rgb[place + index] * (255 - alpha) // 255
                        rgb[place + index] = min(255, behind + (pixel >> shift & 255))
        return bytes(rgb)

    # --- keys ---

    def map_keys(self, text: str) -> None:
        """Give each character of the text a key, if the keyboard has none for it. xdotool would take the key away right
        after its use, and a program that reads the keyboard late would miss the character.
        """
        least, most, width = c_int(), c_int(), c_int()
        self.x.XDisplayKeycodes(self.display, byref(least), byref(most))
        count = most.value - least.value + 1
        self.x.XGetKeyboardMapping.restype = POINTER(c_ulong)
        table = self.x.XGetKeyboardMapping(self.display, c_ushort(least.value), count, byref(width))
        rows = [tuple(table[row * width.value : (row + 1) * width.value]) for row in range(count)]
        known = {keysym for row in rows for keysym in row}
        spare = [least.value + row for row, keysyms in enumerate(rows) if not any(keysyms)]
        ours = [
            least.value + row for row, keysyms in enumerate(rows) if keysyms[0] and set(keysyms[:2]) == {keysyms[0]}
        ]
        wanted = [each for each in map(keysym_of, dict.fromkeys(text)) if each not in known]
        if len(wanted) > len(spare):
            spare += [each for each in ours if each not in spare]
            time.sleep(_READ_SECONDS)  # for whoever still reads what was typed with the earlier keys
        for keycode, keysym in zip(spare, wanted):
            self.x.XChangeKeyboardMapping(self.display, keycode, 2, (c_ulong * 2)(keysym, keysym), 1)
        self.x.XSync(self.display, 0)

    # --- windows ---

    def windows(self) -> list[dict[str, Any]]:
        """Returns the windows of programs: those that the window manager knows, or all that have a name."""
        managed = self._longs(self.root, "_NET_CLIENT_LIST")
        active = (self._longs(self.root, "_NET_ACTIVE_WINDOW") or [0])[0]
        ids = managed or self._named(self.root.value, 0)
        shown = []
        for id in ids[:_MOST_WINDOWS]:
            about = _Attributes()
            if not self.x.XGetWindowAttributes(self.display, c_ulong(id), byref(about)):
                continue
            child, x, y = c_ulong(), c_int(), c_int()
            self.x.XTranslateCoordinates(self.display, c_ulong(id), self.root, 0, 0, byref(x), byref(y), byref(child))
            shown.append(
                {
                    "id": id, "title": self._title(id), "x": x.value, "y": y.value, "width": about.width,
                    "height": about.height, "isActive": id == active,
                }
            )  # fmt: skip
        return shown

    def _named(self, window: int, depth: int) -> list[int]:
        root, parent, children, count = c_ulong(), c_ulong(), POINTER(c_ulong)(), c_uint()
        if not self.x.XQueryTree(
            self.display, c_ulong(window), byref(root), byref(parent), byref(children), byref(count)
        ):
            return []
        below = [children[index] for index in range(min(count.value, _MOST_WINDOWS))]
        if count.value:
            self.x.XFree(children)
        found = []
        for each in below:
            if self._title(each):
                found.append(each)
            elif depth < 3:
                found += self._named(each, depth + 1)
        return found

    def _title(self, window: int) -> str:
        for name in ("_NET_WM_NAME", "WM_NAME"):
            data = self._property(c_ulong(window), name)
            if data:
                return data.decode("utf-8", "replace")[:500]
        return ""

    def _longs(self, window: c_ulong, name: str) -> list[int]:
        data = self._property(window, name, wide=True)
        return [each for each in struct.unpack("@%dL" % (len(data) // struct.calcsize("L")), data) if each]

    def _property(self, window: c_ulong, name: str, *, wide: bool = False) -> bytes:
        atom = c_ulong(self.x.XInternAtom(self.display, name.encode(), 1))
        kind, size, count, more, data = c_ulong(), c_int(), c_ulong(), c_ulong(), c_void_p()
        if not atom.value or self.x.XGetWindowProperty(
            self.display, window, atom, c_long(0), c_long(4096), 0, c_ulong(0), byref(kind), byref(size), byref(count),
            byref(more), byref(data),
        ):  # fmt: skip
            return b""
        # Xlib gives 32 bits of a property as a long.
        wanted = 32 if wide else 8
        width = struct.calcsize("L") if wide else 1
        found = ctypes.string_at(data, count.value * width) if data.value and size.value == wanted else b""
        if data.value:
            self.x.XFree(data)
        return found


def keysym_of(character: str) -> int:
    code = ord(character)
    return code if code < 0x100 else 0x1000000 | code


# --- formats ---


def encode(picture: bytes, width: int, height: int, kind: str, quality: int, scale: float) -> bytes:
    wanted = (max(1, round(width * scale)), max(1, round(height * scale)))
    if kind == "png" and wanted == (width, height):
        return png(picture, width, height)
    image = pillow().frombytes("RGB", (width, height), picture)
    if wanted != (width, height):
        image = image.resize(wanted)
    output = io.BytesIO()
    image.save(output, {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}[kind], quality=quality)
    return output.getvalue()


def pillow() -> Any:
    try:
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fail("missing", "python3-pil")
    return Image


def png(picture: bytes, width: int, height: int) -> bytes:
    lines = b"".join(b"\0" + picture[line * width * 3 :][: width * 3] for line in range(height))
    pieces = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines, 6)),
        (b"IEND", b""),
    ):
        pieces.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return b"".join(pieces)


# --- recordings ---


class Recorder:
    """Writes pictures as an AVI file, each a JPEG. Its index is written at the end."""

    def __init__(self, path: str, width: int, height: int) -> None:
        self.file = open(path, "xb")
        self.width, self.height = width, height
        self.frames: list[tuple[int, int]] = []
        self.file.write(self._head())

    def add(self, jpeg: bytes) -> None:
        self.frames.append((self.file.tell() - 220, len(jpeg)))
        self.file.write(b"00dc" + struct.pack("<I", len(jpeg)) + jpeg + b"\0" * (len(jpeg) % 2))
        self.file.flush()

    def close(self) -> None:
        index = b"".join(b"00dc" + struct.pack("<III", 16, place, size) for place, size in self.frames)
        end = self.file.tell()
        self.file.write(b"idx1" + struct.pack("<I", len(index)) + index)
        total = self.file.tell()
        self.file.seek(0)
        self.file.write(self._head(total, end))
        self.file.close()

    def _head(self, total: int = 0, end: int = 0) -> bytes:
        count, largest = len(self.frames), max((size for _, size in self.frames), default=0)
        each = 1_000_000 // _FRAMES_PER_SECOND
        main = struct.pack("<14I", each, 0, 0, 0x10, count, 0, 1, largest, self.width, self.height, 0, 0, 0, 0)
        stream = b"vidsMJPG" + struct.pack(
            "<10I4H", 0, 0, 0, 1, _FRAMES_PER_SECOND, 0, count, largest, 0xFFFFFFFF, 0, 0, 0, self.width, self.height
        )  # fmt: skip
        size = self.width * self.height * 3
        form = (
            struct.pack("<IiiHH", 40, self.width, self.height, 1, 24)
            + b"MJPG"
            + struct.pack("<IiiII", size, 0, 0, 0, 0)
        )
        strl = _chunk(b"LIST", b"strl" + _chunk(b"strh", stream) + _chunk(b"strf", form))
        hdrl = _chunk(b"LIST", b"hdrl" + _chunk(b"avih", main) + strl)
        return (
            b"RIFF" + struct.pack("<I", max(0, total - 8)) + b"AVI " + hdrl
            + b"LIST" + struct.pack("<I", max(4, end - 220)) + b"movi"
        )  # fmt: skip


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data


def record(path: str) -> None:
    """Record the screen until SIGTERM."""
    pillow()
    screen = Screen()
    width, height = screen.size()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    recorder, ended, written = Recorder(path, width, height), [], 0
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    say({"recording": path})
    due = time.monotonic()
    while not ended and len(recorder.frames) < _MOST_FRAMES and written < _MOST_BYTES:
        x, y = 0, 0
        picture = screen.with_cursor(screen.picture(x, y, width, height), x, y, width, height)
        jpeg = encode(picture, width, height, "jpeg", 70, 1.0)
        recorder.add(jpeg)
        written += len(jpeg)
        due = max(due + 1 / _FRAMES_PER_SECOND, time.monotonic())
        while not ended and time.monotonic() < due:
            time.sleep(min(0.05, max(0.0, due - time.monotonic())))
    recorder.close()


# --- what is asked ---


def take(asked: dict[str, Any]) -> None:
    screen = Screen()
    full_width, full_height = screen.size()
    x, y = asked.get("x") or 0, asked.get("y") or 0
    if x >= full_width or y >= full_height:
        fail("outside", "the region is outside of the screen, which is %d x %d" % (full_width, full_height))
    width = min(asked.get("width") or full_width, full_width - x)
    height = min(asked.get("height") or full_height, full_height - y)
    picture = screen.picture(x, y, width, height)
    if asked.get("cursor"):
        picture = screen.with_cursor(picture, x, y, width, height)
    data = encode(picture, width, height, asked["format"], asked["quality"], asked["scale"])
    pointer_x, pointer_y = screen.pointer()
    say({"x": pointer_x, "y": pointer_y, "size": len(data)})
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def run(asked: dict[str, Any]) -> None:
    if asked["do"] == "picture":
        take(asked)
    elif asked["do"] == "record":
        record(asked["path"])
    elif asked["do"] == "keys":
        Screen().map_keys(asked["text"])
        say({"mapped": True})
    elif asked["do"] == "windows":
        say({"windows": Screen().windows()})
    else:
        screen = Screen(wait=asked.get("wait") or 0)
        width, height = screen.size()
        x, y = screen.pointer()
        say({"width": width, "height": height, "x": x, "y": y})


if __name__ == "__main__":
    run(json.loads(sys.argv[2]))
