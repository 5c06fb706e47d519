"""The programs of a workstation: what is started in the box of a session, in which order, and where. Only data.

All of them listen on the loopback interface of the box, without a login of their own: the gateway is the only way to
them from outside, and it knows who comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.session.gateway import DESKTOP_PORT, EDITOR_PORT
from holdfast.runs.launch.plan import DISPLAY

_VNC_PORT: Final = 5900
_NUMBER: Final = DISPLAY.removeprefix(":")
_NOVNC: Final = "/usr/share/novnc"
CLEAN: Final = (".config/chromium/SingletonLock", ".config/chromium/SingletonSocket")
"""Locks below the home folder that outlive a browser when its box is stopped."""
_FLUXBOX: Final = {
    # With the style of Debian, a message asks for a program that sets wallpapers.
    ".fluxbox/init": (
        "session.styleFile: /usr/share/fluxbox/styles/bloe\n"
        "session.styleOverlay: ~/.fluxbox/overlay\n"
        "session.menuFile: ~/.fluxbox/menu\n"
    ),
    ".fluxbox/overlay": "background: flat\nbackground.color: #1c2b33\n",
    ".fluxbox/menu": (
        "[begin] (Workstation)\n"
        "[exec] (Terminal) {x-terminal-emulator}\n"
        "[exec] (Browser) {chromium}\n"
        "[separator]\n"
        "[workspaces] (Workspaces)\n"
        "[end]\n"
    ),
}
_EDITOR: Final = {
    # Its own assistant would ask for an account elsewhere: the session has an agent.
    ".local/share/code-server/User/settings.json": (
        '{"chat.disableAIFeatures": true, "telemetry.telemetryLevel": "off", "update.mode": "none",'
        ' "extensions.autoCheckUpdates": false, "extensions.autoUpdate": false, "workbench.startupEditor": "none"}\n'
    ),
}


@dataclass(frozen=True, slots=True)
class WorkstationProgram:
    name: str
    title: str
    argv: tuple[str, ...]
    port: int | None = None
    """It is ready when it listens here."""
    socket: str | None = None
    """It is ready when it answers here."""
    after: tuple[str, ...] = ()
    """The programs that have to run first."""
    beside: tuple[str, ...] = ()
    """The programs that it is ready with, and not before. It starts at the same time."""
    needs: tuple[str, ...] = ()
    """Paths without which it is missing, too."""
    locks: tuple[str, ...] = ()
    """Files that are removed before it starts, unless their owner runs."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings, by paths below the home folder. Written if there are none."""
    path: str | None = None
    """The page of the gateway that leads to it."""

    def to_json(self, home: str) -> dict[str, Any]:
        """As the supervisor in the box reads it. `home` is the home folder of the box."""
        return {
            "name": self.name,
            "argv": list(self.argv),
            "env": {"DISPLAY": DISPLAY},
            "port": self.port,
            "socket": self.socket,
            "after": list(self.after),
            "beside": list(self.beside),
            "needs": list(self.needs),
            "locks": list(self.locks),
            "files": {f"{home}/{path}": text for path, text in self.files.items()},
        }


PROGRAMS: Final = (
    WorkstationProgram(
        "screen",
        "Screen",
        ("Xvfb", DISPLAY, "-screen", "0", "1920x1080x24", "-nolisten", "tcp"),
        socket=f"/tmp/.X11-unix/X{_NUMBER}",
        locks=(f"/tmp/.X{_NUMBER}-lock",),
    ),
    WorkstationProgram("windows", "Window manager", ("fluxbox",), after=("screen",), files=_FLUXBOX),
    WorkstationProgram(
        "vnc",
        "VNC server",
        ("x11vnc", "-display", DISPLAY, "-localhost", "-no6", "-forever", "-shared", "-nopw", "-quiet", "-noxrecord",
         "-nolookup", "-norc", "-nodpms",
         "-rfbport", str(_VNC_PORT)),
        port=_VNC_PORT,
        after=("screen",),
    ),
    WorkstationProgram(
        "desktop",
        "Desktop",
        ("websockify", "--web", _NOVNC, f"127.0.0.1:{DESKTOP_PORT}", f"127.0.0.1:{_VNC_PORT}"),
        port=DESKTOP_PORT,
        beside=("vnc",),
        needs=(f"{_NOVNC}/vnc.html",),
        path="/vnc/vnc.html?autoconnect=1&resize=scale&path=vnc/websockify",
    ),
    WorkstationProgram(
        "editor",
        "Editor",
        ("code-server", "--bind-addr", f"127.0.0.1:{EDITOR_PORT}", "--auth", "none", "--disable-telemetry",
         "--disable-update-check", "--disable-workspace-trust", "--disable-getting-started-override",
         # Its own way to other ports would show them on the origin of the session. Tunnels have their own.
         "--disable-proxy"),
        port=EDITOR_PORT,
        files=_EDITOR,
        path="/vscode/?folder={workdir}",
    ),
)  # fmt: skip
