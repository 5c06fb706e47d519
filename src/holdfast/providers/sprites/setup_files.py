"""What a set-up writes into a sprite, and the commands that write it. Pure, but for packing a folder.

Everything can be done twice, and leaves alone what the user has there: programs of the same name, variables of the
same name, and other lines of the same files.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOOLS: Final = ".holdfast/tools"
"""Below the home. Runs in a box look for their agents here."""
ENVIRONMENT: Final = ".config/holdfast/environment"
PART: Final = 4 << 20
MARK: Final = "# made by holdfast provider setup"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=")
MOST_VALUE: Final = 32 * 1024

PROBE: Final = r"""
printf '%s\n' "$HOME"; uname -m
node --version 2>/dev/null || echo none
df -Pk "$HOME" 2>/dev/null | awk 'END{print $4}'
"""
HAS: Final = '[ -e "$HOME/$1" ] && echo yes || echo no'
PUT_PART: Final = 'umask 022; mkdir -p "$HOME/$1"; cat > "$HOME/$1/$2.new"; mv "$HOME/$1/$2.new" "$HOME/$1/$2"'
UNPACK: Final = """
set -eu
cd "$HOME"; umask 022; mkdir -p "$(dirname "$2")"
rm -rf "$2.new"; mkdir "$2.new"
cat "$1"/* | tar -xzf - -C "$2.new"
mv "$2.new" "$2" 2>/dev/null || { rm -rf "$2.new"; [ -e "$2" ]; }
rm -rf "$1"
"""
LINK: Final = f"""
set -eu
own=$(command -v "$1" 2>/dev/null || true); file="$HOME/.local/bin/$1"
if [ -n "$own" ] && ! grep -qF "{MARK}" "$own" 2>/dev/null; then echo "$own"; exit; fi
if [ -e "$file" ] && ! grep -qF "{MARK}" "$file"; then echo "$file"; exit; fi
mkdir -p "$HOME/.local/bin"
cat > "$file.new"; chmod 755 "$file.new"; mv "$file.new" "$file"
echo made
"""
"""Writes a program from stdin, unless the user has one of the name. Prints `made`, or the path of the user's."""
READ_ENVIRONMENT: Final = f'cat "$HOME/{ENVIRONMENT}" 2>/dev/null || true'
WRITE_ENVIRONMENT: Final = f"""
set -eu
umask 077; cd "$HOME"; mkdir -p "$(dirname {ENVIRONMENT})"
cat > {ENVIRONMENT}.new; mv {ENVIRONMENT}.new {ENVIRONMENT}
umask 022
grep -qF "{ENVIRONMENT}" .profile 2>/dev/null ||
    printf '%s\\n' '[ -r "$HOME/{ENVIRONMENT}" ] && . "$HOME/{ENVIRONMENT}"  {MARK}' >> .profile
if [ -d .config/fish ] && ! [ -e .config/fish/conf.d/holdfast.fish ]; then
    mkdir -p .config/fish/conf.d
    printf '%s\\n' 'test -r ~/{ENVIRONMENT}; and source ~/{ENVIRONMENT}  {MARK}' > .config/fish/conf.d/holdfast.fish
fi
"""


@dataclass(frozen=True, slots=True)
class Merged:
    text: str
    added: tuple[str, ...]
    kept: tuple[str, ...]
    """Names that the sprite has already, with whatever value."""


def merge_environment(before: str, wanted: Mapping[str, str]) -> Merged:
    """Add variables to a file. Lines that are there stay; empty values are not added."""
    there = {found[1] for line in before.splitlines() if (found := _LINE.match(line))}
    added = [name for name, value in wanted.items() if value and name not in there]
    lines = before.rstrip("\n").split("\n") if before.strip() else [MARK]
    if not any(".local/bin" in line for line in lines):
        lines.append('export PATH="$HOME/.local/bin:$PATH"')
    lines += [f"export {name}={shlex.quote(wanted[name])}" for name in added]
    return Merged("\n".join(lines) + "\n", tuple(added), tuple(name for name in wanted if name in there))


def check_variable(name: str, value: str) -> str | None:
    """Returns what is wrong with a variable, without its value, or None."""
    if not _NAME.fullmatch(name):
        return f"{name[:60]!r} cannot be the name of a variable"
    if len(value) > MOST_VALUE:
        return f"the value of {name} is longer than {MOST_VALUE} characters"
    if any(each in value for each in "\0\r\n"):
        return f"the value of {name} has several lines"
    return None


def masked(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name}=•••" for name in names)


def launcher(node: str, program: str, *, is_script: bool) -> bytes:
    """Returns a small program that starts an agent. Paths are below the home."""
    command = f'"$HOME/{program}"' if not is_script else f'{node} "$HOME/{program}"'
    return f'#!/bin/sh\n{MARK}\nexec {command} "$@"\n'.encode()


def packed_parts(folder: Path) -> Iterator[bytes]:
    """Yields a folder as parts of a compressed archive. Blocks."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in _all_in(folder):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)
            if buffer.tell() >= PART:
                data = buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
                yield from (data[at : at + PART] for at in range(0, len(data), PART))
    if data := buffer.getvalue():
        yield from (data[at : at + PART] for at in range(0, len(data), PART))


def _all_in(folder: Path) -> Iterator[Path]:
    """Yields everything in a folder, folders before what is in them. Follows no link."""
    for place, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            yield Path(place, name)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
