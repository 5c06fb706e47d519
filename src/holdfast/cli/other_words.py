"""Which of our commands does what a word of another tool stands for, such as `ps`, `rm` or `logs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.cli.commands import COMMANDS, Group, find

_LIST: Final = ("holdfast box list", "holdfast runs", "holdfast thread list", "holdfast session list")
_DELETE: Final = ("holdfast box delete BOX", "holdfast thread delete THREAD", "holdfast session delete SESSION")
_STOP: Final = ("holdfast cancel THREAD", "holdfast box stop BOX", "holdfast down")
_SHOW: Final = ("holdfast thread show THREAD", "holdfast box show BOX", "holdfast session status SESSION")
_FOLLOW: Final = ("holdfast attach THREAD", "holdfast thread tail THREAD", "holdfast box logs BOX")
_NEW: Final = ("holdfast run PROMPT", "holdfast box create", "holdfast session new", "holdfast thread new TITLE")
_SHELL: Final = ("holdfast box shell BOX",)
_AGENT: Final = ("holdfast run PROMPT", "holdfast agent list")

AT_THE_TOP: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("ps", "ls", "list"), _LIST),
    **dict.fromkeys(("rm", "remove", "delete", "destroy"), _DELETE),
    **dict.fromkeys(("stop", "kill", "abort", "pause"), _STOP),
    **dict.fromkeys(("show", "status", "inspect", "info", "get", "describe"), _SHOW),
    **dict.fromkeys(("logs", "log", "tail", "follow", "watch", "events"), _FOLLOW),
    **dict.fromkeys(("create", "new", "add", "launch"), _NEW),
    **dict.fromkeys(("shell", "ssh", "sh", "bash", "enter", "console"), _SHELL),
    **dict.fromkeys(("start", "serve", "server"), ("holdfast up", "holdfast box start BOX")),
    **dict.fromkeys(("claude", "codex", "pi", "opencode", "code", "chat"), _AGENT),
    **dict.fromkeys(("python", "repl", "eval"), ("holdfast interpreter run",)),
    **dict.fromkeys(("exec", "execute"), ("holdfast box exec BOX -- COMMAND",)),
    **dict.fromkeys(("cp", "copy", "upload", "download"), ("holdfast box cp",)),
    **dict.fromkeys(("port", "ports", "forward", "preview", "expose"), ("holdfast box port BOX",)),
    **dict.fromkeys(("stats", "top"), ("holdfast box top",)),
    **dict.fromkeys(("prompt", "send", "say", "tell"), ("holdfast steer THREAD", "holdfast session prompt SESSION")),
    **dict.fromkeys(("continue", "retry", "restart"), ("holdfast resume THREAD", "holdfast box start BOX")),
    **dict.fromkeys(("undo", "reset", "revert"), ("holdfast rewind THREAD",)),
    **dict.fromkeys(("branch", "clone"), ("holdfast fork THREAD",)),
    **dict.fromkeys(("merge", "patch"), ("holdfast apply THREAD",)),
    **dict.fromkeys(("history", "turns"), ("holdfast thread turns THREAD",)),
    **dict.fromkeys(("snapshot", "commit", "save"), ("holdfast box snapshot BOX", "holdfast push THREAD")),
    **dict.fromkeys(("pull",), ("holdfast image pull NAME",)),
    **dict.fromkeys(("build",), ("holdfast image build", "holdfast env build")),
    **dict.fromkeys(("init",), ("holdfast env new",)),
    **dict.fromkeys(("settings",), ("holdfast config show",)),
    **dict.fromkeys(("usage", "costs"), ("holdfast cost",)),
    **dict.fromkeys(("uninstall", "clean"), ("holdfast purge", "holdfast box prune")),
    **dict.fromkeys(("system", "health"), ("holdfast doctor",)),
    **dict.fromkeys(("version",), ("holdfast --version",)),
    **dict.fromkeys(("help",), ("holdfast --help",)),
}
"""By what other tools call it: our commands, the likeliest first."""

_SAME: Final = (
    ("list", "ls", "ps"),
    ("delete", "remove", "revoke", "terminate", "rm", "rmi", "destroy", "del"),
    ("new", "create", "add", "set", "import", "build", "make"),
    ("show", "status", "list", "inspect", "info", "get", "describe", "cat", "view"),
    ("shell", "ssh", "sh", "bash", "enter", "attach", "console"),
    ("exec", "run", "execute"),
    ("cp", "copy", "upload", "download", "put"),
    ("logs", "tail", "log", "follow", "watch", "events"),
    ("top", "stats"),
    ("port", "open", "ports", "forward", "preview", "expose"),
    ("stop", "hibernate", "kill", "pause", "suspend", "sleep"),
    ("start", "restore", "resume", "unpause", "wake"),
    ("snapshot", "commit", "save", "checkpoint"),
    ("fork", "clone", "branch"),
    ("prompt", "reply", "append", "send", "say", "chat", "write"),
    ("set", "edit", "configure", "update", "change"),
    ("rename", "mv"),
    ("turns", "history"),
    ("rotate", "renew"),
)
"""Words for the same thing. Of a group, the first one that it has is meant."""


_PLURALS: Final = {
    **{f"{name}s": name for name, each in COMMANDS.items() if isinstance(each, Group)},
    "boxes": "box",
    "environments": "env",
}


def ours_for(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns our commands for a command line that begins with a word of another tool. Empty if none is known."""
    found, named = find(arguments)
    if isinstance(found, str) or len(arguments) == len(named):
        return ()
    word = arguments[len(named)]
    if isinstance(found, Group):
        return _in_group(found, " ".join(["holdfast", *named]), word)
    if word in AT_THE_TOP:
        return AT_THE_TOP[word]
    group = COMMANDS.get(_PLURALS.get(word, ""))
    return _in_group(group, f"holdfast {_PLURALS[word]}", "list") if isinstance(group, Group) else ()


def _in_group(group: Group, name: str, word: str) -> tuple[str, ...]:
    if word in group.commands:
        return (f"{name} {word}",)
    for words in _SAME:
        if word in words and (meant := next((each for each in words if each in group.commands), None)) is not None:
            return (f"{name} {meant}",)
    return ()
