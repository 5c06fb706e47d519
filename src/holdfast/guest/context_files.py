"""Writes a few small files below a folder of a box, and follows no link on the way. Standard library only.

The program gets JSON over stdin: `{"root": […folders below home…], "files": {name: text}}`. It prints `{}`, or
`{"problem": …}`.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(home: str, root: "list[str]", files: "dict[str, str]") -> None:
    """Write files below `root`, a path from `home`. Raises OSError if a part of it is a link, or no folder."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in root:
            try:
                os.mkdir(part, 0o755, dir_fd=folder)
            except FileExistsError:
                pass
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        for name, text in files.items():
            if "/" in name or name in ("", ".", ".."):
                raise ValueError(name)
            temporary = ".%s.%s" % (name, os.urandom(6).hex())
            file = os.open(temporary, _FILE, 0o644, dir_fd=folder)
            try:
                with os.fdopen(file, "wb") as target:
                    target.write(text.encode())
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(temporary, dir_fd=folder)
                raise
    finally:
        os.close(folder)


def main() -> None:
    request: dict[str, Any] = json.load(sys.stdin)
    try:
        write(os.environ["HOME"], request["root"], request["files"])
    except (OSError, KeyError, ValueError) as error:
        sys.stdout.write(json.dumps({"problem": str(error)}))
    else:
        sys.stdout.write("{}")


if __name__ == "__main__":
    main()
