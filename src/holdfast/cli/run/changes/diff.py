"""`holdfast diff`: what the agents of a thread changed in its workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.changes.apply import IGNORED
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import ACCENT, Cell, hint, is_terminal, note, write_bytes, write_json, write_line

_MOST_REFUSED: Final = 5

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.api.run.runs import Changes, FileChange
    from holdfast.client import Client


def diff(
    thread: RunThreadArgument,
    stat: Annotated[bool, Option("--stat", help="Print only the changed files and line counts.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show what changed in a thread's workspace since it began. In a pipe, print a patch for git apply.

    New files that the workspace's .gitignore files ignore are left out, and counted.

    \b
    holdfast diff t-1
    holdfast diff t-1 | git apply
    """

    is_patch = not (as_json or stat or is_terminal())

    async def work(client: Client) -> Changes:
        id = await find_thread(client, thread)
        changes = await client.runs.changes(id)
        if is_patch and changes.exact:
            write_bytes(changes.patch.encode())
        elif is_patch:
            async for piece in client.runs.patch(id):
                write_bytes(piece)
        return changes

    changes = ask(where, work)
    if as_json:
        write_json(changes.to_json())
        return
    if not changes.files:
        note("unchanged", "the workspace is as it was when the thread began")
    elif stat:
        for line in stat_lines(changes.files):
            write_line(*line)
    elif not is_patch:
        for line in patch_lines(changes.patch):
            write_line(*line)
    if changes.files and changes.digest and not is_patch:
        note("digest", changes.digest, hint(f"  bring these changes home with holdfast apply {thread} --accept DIGEST"))
    if changes.ignored:
        count = f"{changes.ignored} new file{'' if changes.ignored == 1 else 's'}"
        note("ignored", f"{count}{IGNORED}", hint("  copy them with holdfast box cp"))
    for path in changes.refused[:_MOST_REFUSED]:
        note("left out", plain(path), hint("  git accepts this name in no patch"))
    if len(changes.refused) > _MOST_REFUSED:
        note("left out", f"{len(changes.refused) - _MOST_REFUSED} more such names")
    if changes.truncated and not is_patch:
        note("cut", "there are more changes than fit", hint("  copy the files themselves with holdfast box cp"))


def stat_lines(files: Iterable[FileChange]) -> Iterator[tuple[Cell, ...]]:
    """One line for each file."""
    names = {"added": "+", "deleted": "−", "changed": "✎"}
    for each in files:
        counted = (Cell("  binary", "dim"),) if each.binary else (
            Cell(f"  +{each.added}", "green"), Cell(f" −{each.removed}", "red"),
        )  # fmt: skip
        yield (Cell(f"  {names[each.how]} ", ACCENT), Cell(plain(each.path).replace("\n", "␊")), *counted)


def patch_lines(patch: str) -> Iterator[tuple[Cell, ...]]:
    """A patch in colour. The contents of files are as untrusted as the output of agents."""
    for line in plain(patch).rstrip("\n").split("\n"):
        if line.startswith(("+++ ", "--- ", "diff ", "index ", "new file", "deleted file")):
            yield (Cell(line, "bold"),)
        elif line.startswith("@@"):
            yield (Cell(line, ACCENT),)
        else:
            yield (Cell(line, {"+": "green", "-": "red"}.get(line[:1], "")),)
