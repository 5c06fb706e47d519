"""Mouse and keyboard of a sandbox's desktop, by the xdotool of its image."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.errors.boxes import CannotExecute, ExecTimeout
from holdfast.compat.daytona.http.errors import ApiError, bad_request
from holdfast.compat.daytona.http.requests import answer, body_of
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.toolbox.access import Opened, opened
from holdfast.compat.daytona.toolbox.desktop import look, missing, on_desktop

_SECONDS: Final = 30.0
_BETWEEN_CLICKS: Final = 60
"""Milliseconds: less than what desktops take for a double click."""
_UNUSUAL: Final = 16
"""A keyboard has more free keys than that."""
_WHERE: Final = ("getmouselocation", "--shell")
_PLACE: Final = re.compile(r"^X=(-?\d{1,6})\nY=(-?\d{1,6})$", re.MULTILINE)
_BUTTONS: Final = {"left": 1, "middle": 2, "right": 3}
_WHEEL: Final = {"up": 4, "down": 5, "left": 6, "right": 7}
_MODIFIERS: Final = {
    **dict.fromkeys(("ctrl", "control"), "ctrl"),
    **dict.fromkeys(("alt", "option"), "alt"),
    "shift": "shift",
    **dict.fromkeys(("cmd", "command", "meta", "super", "win", "windows"), "super"),
}
_KEYS: Final = {
    **_MODIFIERS,
    "enter": "Return", "return": "Return", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "space",
    "backspace": "BackSpace", "delete": "Delete", "del": "Delete", "insert": "Insert", "home": "Home", "end": "End",
    "pageup": "Page_Up", "page_up": "Page_Up", "pagedown": "Page_Down", "page_down": "Page_Down", "up": "Up",
    "down": "Down", "left": "Left", "right": "Right", "capslock": "Caps_Lock", "menu": "Menu", "print": "Print",
    "printscreen": "Print", **{f"f{number}": f"F{number}" for number in range(1, 25)},
}  # fmt: skip
"""Names of keys as users write them, and as X calls them."""
_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")

Coordinate = Annotated[int, Field(ge=0, le=65_535)]
Button = Literal["left", "right", "middle", ""]
Modifiers = Annotated[list[Annotated[str, Field(max_length=20)]], Field(max_length=8)]
KeyName = Annotated[str, Field(min_length=1, max_length=50)]


class Place(Body):
    x: Coordinate
    y: Coordinate


class Press(Body):
    x: Coordinate | None = None
    y: Coordinate | None = None
    button: Button | None = None


class Click(Press):
    double: bool | None = None
    clicks: Annotated[int, Field(ge=1, le=10)] | None = None
    modifiers: Modifiers | None = None


class Drag(Body):
    start_x: Coordinate
    start_y: Coordinate
    end_x: Coordinate
    end_y: Coordinate
    button: Button | None = None
    modifiers: Modifiers | None = None


class Scroll(Body):
    x: Coordinate | None = None
    y: Coordinate | None = None
    direction: Literal["up", "down", "left", "right"]
    amount: Annotated[int, Field(ge=0, le=1000)] = 1
    modifiers: Modifiers | None = None


class Type(Body):
    text: Annotated[str, Field(max_length=20_000)]
    delay: Annotated[int, Field(ge=0, le=1000)] | None = None


class Key(Body):
    key: KeyName
    modifiers: Modifiers | None = None


class Hotkey(Body):
    keys: Annotated[str, Field(min_length=1, max_length=200)]


# --- decisions ---


def key_of(name: str) -> str:
    """Returns a key as xdotool takes it. Raises for what cannot be one."""
    known = _KEYS.get(name.lower()) if len(name) > 1 else None
    if known is not None:
        return known
    if len(name) == 1:
        return name if name.isascii() and name.isalnum() else f"U{ord(name):04X}"
    if not _KEY.fullmatch(name):
        raise bad_request(f"{name!r} is not a key")
    return name


def keys_of(combination: str) -> str:
    """Returns a combination such as `ctrl+c`. A plus sign is a key, too: `ctrl++`."""
    names = combination.split("+")
    if names[-2:] == ["", ""]:
        names[-2:] = ["+"]
    return "+".join(key_of(each.strip() or "+") for each in names)


def modifiers_of(names: list[str] | None) -> list[str]:
    found = []
    for name in names or ():
        if name.lower() not in _MODIFIERS:
            raise bad_request(f"{name!r} is not a modifier: ctrl, alt, shift or cmd")
        found.append(_MODIFIERS[name.lower()])
    return list(dict.fromkeys(found))


def parts_of(text: str) -> list[str]:
    """Returns a text in parts, each with so few characters beyond ASCII that the keyboard has a key for each."""
    parts, begin, unusual = [], 0, set[str]()
    for place, character in enumerate(text):
        if not character.isascii():
            unusual.add(character)
        if len(unusual) > _UNUSUAL:
            parts.append(text[begin:place])
            begin, unusual = place, {character}
    return [each for each in (*parts, text[begin:]) if each]


def held(modifiers: list[str] | None, *words: str) -> list[str]:
    """Returns the words of xdotool with modifiers held meanwhile."""
    keys = modifiers_of(modifiers)
    if not keys:
        return list(words)
    return ["keydown", "+".join(keys), *words, "keyup", "+".join(keys)]


def move_to(x: int | None, y: int | None) -> list[str]:
    if (x is None) != (y is None):
        raise bad_request("x and y come together")
    return [] if x is None else ["mousemove", str(x), str(y)]


def button_of(name: str | None) -> str:
    return str(_BUTTONS[name or "left"])


# --- routes ---


async def _run(at: Opened, words: list[str], *, stdin: bytes = b"", seconds: float = _SECONDS) -> str:
    environment = await on_desktop(at)
    try:
        done = await at.box.exec(["xdotool", *words], env=environment, stdin=stdin, timeout=seconds, max_output=65_536)
    except CannotExecute:
        raise missing(["xdotool"]) from None
    except ExecTimeout:
        raise ApiError(500, f"the desktop has not taken this within {seconds:.0f} seconds") from None
    told = done.stderr.decode("utf-8", "replace")
    if "No such key name" in told:
        raise bad_request(told.strip().splitlines()[0][:200])
    if done.exit_code:
        raise ApiError(500, f"xdotool failed: {told.strip()[-500:]}")
    return done.stdout.decode("utf-8", "replace")


async def _place(request: Request, *words: str) -> Response:
    """Run words of xdotool, and answer with the place of the mouse after them."""
    async with opened(request) as at:
        told = await _run(at, [*words, *_WHERE])
    found = _PLACE.search(told)
    if found is None:
        raise ApiError(500, "xdotool does not say where the mouse is")
    return answer({"x": int(found[1]), "y": int(found[2])})


async def position(request: Request) -> Response:
    return await _place(request)


async def move(request: Request) -> Response:
    wanted = await body_of(request, Place)
    return await _place(request, *move_to(wanted.x, wanted.y))


async def press_button(request: Request) -> Response:
    wanted = await body_of(request, Press)
    return await _place(request, *move_to(wanted.x, wanted.y), "mousedown", button_of(wanted.button))


async def release_button(request: Request) -> Response:
    wanted = await body_of(request, Press)
    return await _place(request, *move_to(wanted.x, wanted.y), "mouseup", button_of(wanted.button))


async def click(request: Request) -> Response:
    wanted = await body_of(request, Click)
    times = wanted.clicks or (2 if wanted.double else 1)
    clicks = ("click", "--repeat", str(times), "--delay", str(_BETWEEN_CLICKS), button_of(wanted.button))
    return await _place(request, *move_to(wanted.x, wanted.y), *held(wanted.modifiers, *clicks))


async def drag(request: Request) -> Response:
    wanted = await body_of(request, Drag)
    button = button_of(wanted.button)
    # Programs begin to drag when the mouse has moved while the button is down.
    middle = move_to((wanted.start_x + wanted.end_x) // 2, (wanted.start_y + wanted.end_y) // 2)
    begin, end = move_to(wanted.start_x, wanted.start_y), move_to(wanted.end_x, wanted.end_y)
    words = held(wanted.modifiers, "mousedown", button, *middle, *end, "mouseup", button)
    return await _place(request, *begin, *words)


async def scroll(request: Request) -> Response:
    wanted = await body_of(request, Scroll)
    words = move_to(wanted.x, wanted.y)
    if wanted.amount:
        turns = ("click", "--repeat", str(wanted.amount), "--delay", "5", str(_WHEEL[wanted.direction]))
        words += held(wanted.modifiers, *turns)
    async with opened(request) as at:
        await _run(at, words or list(_WHERE))
    return answer({"success": True})


async def type_text(request: Request) -> Response:
    wanted = await body_of(request, Type)
    delay = wanted.delay or 0
    words = ["type", "--delay", str(delay), "--file", "-"]
    async with opened(request) as at:
        for part in parts_of(wanted.text):
            if not part.isascii():
                await look(at, await on_desktop(at), do="keys", text="".join(sorted(set(part))))
            seconds = _SECONDS + len(part) * (delay + 20) / 1000
            await _run(at, words, stdin=part.encode("utf-8", "replace"), seconds=seconds)
    return answer({})


async def _press(request: Request, *words: str) -> Response:
    async with opened(request) as at:
        await _run(at, list(words))
    return answer({})


async def press_key(request: Request) -> Response:
    wanted = await body_of(request, Key)
    return await _press(request, "key", "+".join([*modifiers_of(wanted.modifiers), key_of(wanted.key)]))


async def hotkey(request: Request) -> Response:
    return await _press(request, "key", keys_of((await body_of(request, Hotkey)).keys))


async def hold_key(request: Request) -> Response:
    return await _press(request, "keydown", key_of((await body_of(request, Key)).key))


async def release_key(request: Request) -> Response:
    return await _press(request, "keyup", key_of((await body_of(request, Key)).key))


def routes() -> list[Route]:
    mouse, keyboard = "/computeruse/mouse", "/computeruse/keyboard"
    return [
        Route(f"{mouse}/position", position, methods=["GET"]),
        Route(f"{mouse}/move", move, methods=["POST"]),
        Route(f"{mouse}/down", press_button, methods=["POST"]),
        Route(f"{mouse}/up", release_button, methods=["POST"]),
        Route(f"{mouse}/click", click, methods=["POST"]),
        Route(f"{mouse}/drag", drag, methods=["POST"]),
        Route(f"{mouse}/scroll", scroll, methods=["POST"]),
        Route(f"{keyboard}/type", type_text, methods=["POST"]),
        Route(f"{keyboard}/key", press_key, methods=["POST"]),
        Route(f"{keyboard}/hotkey", hotkey, methods=["POST"]),
        Route(f"{keyboard}/down", hold_key, methods=["POST"]),
        Route(f"{keyboard}/up", release_key, methods=["POST"]),
    ]
