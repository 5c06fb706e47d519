"""Runs inside a new sandbox: puts the guest's files in place and has the sandbox's first command start it.

Standard library only, Python 3.9 or newer. It is sent as source code, and reads what to do from its stdin, as JSON.
"""

import json
import os
import shlex
import sys
from pathlib import Path


def main() -> None:
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    if not folder.is_dir():  # a restored box has them
        fresh = Path(f"{folder}.{os.getpid()}")
        fresh.mkdir(parents=True)
        for name, text in asked["files"].items():
            (fresh / name).write_text(text, encoding="utf-8")
        fresh.rename(folder)
    command = [sys.executable if word is None else word for word in asked["command"]]
    start = Path(asked["start"])
    lines = ["rm -f " + shlex.quote(str(start)), "exec " + " ".join([shlex.quote(word) for word in command])]
    new = Path(f"{start}.new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.rename(start)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "HOLDFAST_"))}
    json.dump({"python": sys.executable, "environment": environment}, sys.stdout)


if __name__ == "__main__":
    main()
