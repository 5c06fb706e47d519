"""The command as the user called it, so that hints can be pasted: `bin/holdfast` in a checkout, else `holdfast`.

Messages, the server's too, always say `holdfast`. This is the one place that puts the user's own word in.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Final

_NAME: Final = "holdfast"
_IN_A_HINT: Final = re.compile(rf"(?<![\w./-]){_NAME} (?=[a-z-])")


def as_called(hint: str) -> str:
    """A hint with its commands as the user has to type them."""
    name = command_name()
    return hint if name == _NAME else _IN_A_HINT.sub(lambda _: f"{name} ", hint)


@cache
def command_name() -> str:
    """What the user typed, or plain `holdfast` where that runs the same program."""
    typed = Path(sys.argv[0])
    if typed.name != _NAME:
        return _NAME  # python -m holdfast, or a program that uses us
    found = shutil.which(_NAME)
    if found is not None and typed.exists() and Path(found).samefile(typed):
        return _NAME
    return shlex.quote(sys.argv[0])
