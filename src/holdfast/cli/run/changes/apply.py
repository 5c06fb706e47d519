"""`holdfast apply`: brings the changes of a thread home, into a checkout or onto a branch of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask, home_or_default
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import ACCENT, Cell, hint, note, write_json, write_line

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.repositories.apply import Applied
    from holdfast.repositories.branch import Work
    from holdfast.repositories.changes import ChangedFiles, LeftOut
    from holdfast.repositories.surroundings import Surroundings

_SHOWN: Final = 50
_MOST_LEFT_OUT: Final = 5
APPLIED: Final = "applied"
"""The folder of a home that remembers what was applied to folders without git."""
IGNORED: Final = ", excluded by a .gitignore or as caches (__pycache__, node_modules)"
AcceptOption = Annotated[
    str | None,
    Option("--accept", metavar="DIGEST", help="Do not ask, if the changes still have this digest: see holdfast diff."),
]
DirectoryOption = Annotated[
    Path | None, Option("--dir", metavar="PATH", help="Checkout to use. Default: the current git repository.")
]


def apply(
    thread: RunThreadArgument,
    branch: Annotated[
        str | None, Option("--branch", metavar="NAME", help="Commit to this branch, and leave the working tree alone.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Only say what would happen.")] = False,
    again: Annotated[bool, Option("--again", help="Also what was applied before, and discarded since.")] = False,
    directory: DirectoryOption = None,
    accept: AcceptOption = None,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Merge the changes of a thread into your checkout. Exits with 6 if there are conflicts.

    Your own work is safe: files that you changed too are merged line by line, conflicts look as git makes them, and
    uncommitted changes that would conflict stop the command before anything is written. Applying again, after the
    agent's next turn, brings only what is new. A folder without git works, too. Files that run without being started,
    such as those of a CI, are named, and need your consent. With --accept it is for exactly the changes that
    holdfast diff showed, whatever the agent has done since.

    \b
    holdfast apply t-1
    holdfast apply t-1 --check
    holdfast apply t-1 --branch fix-price
    holdfast apply t-1 --accept 0f343b0931126a20f133d67c2b018a3b
    """
    if branch is not None and check:
        raise CommandError("--branch and --check exclude each other", next_step="give only one", exit=Exit.USAGE)
    folder, is_repository = checkout_of(directory)
    with changed_files(where, thread) as (changed, work), explained():
        check_accepted(changed, accept)
        yes = yes or accept is not None
        from holdfast.repositories.apply import Apply
        from holdfast.repositories.branch import files_at_begin, make_branch
        from holdfast.repositories.git import Git
        from holdfast.repositories.plain_folder import beside
        from holdfast.repositories.surroundings import outside_repositories

        git = Git.of_user(os.environ)
        if not is_repository:
            if branch is not None or changed.source is not None:
                raise _no_repository(folder)
            git = beside(git, folder, home_or_default(where.home) / APPLIED)
        if branch is not None:
            around = files_at_begin(git, folder, changed)
            changed = outside_repositories(changed, around, changed.prefix)
            command = f"holdfast apply {thread} --branch {branch}"
            consent(changed, around, command, yes=yes, prefix=changed.prefix)
            made = make_branch(git, folder, changed, branch, work)
            if as_json:
                write_json({"branch": made.name, "commit": made.commit, "new": made.is_new, **_left_out(changed)})
            else:
                note("branch", made.name, Cell(f"  {made.commit[:12]}{'' if made.is_new else ', as before'}", "dim"))
                print_left_out(changed.left_out)
            return Exit.OK
        place = folder if directory is not None or not is_repository else _place(folder, changed)
        work_here = Apply(git, place, changed, again=again)
        changed = work_here.changed

        def planned() -> tuple[bytes, ...]:
            plan = work_here.check()
            return (*plan.changed, *plan.conflicts)

        command = f"holdfast apply {thread}{' --again' if again else ''}"
        consent(changed, work_here.around, command, yes=yes or check, prefix=work_here.prefix, planned=planned)
        done = work_here.check() if check else work_here.apply()
    if as_json:
        write_json({**_document(done), **_left_out(changed), "digest": changed.digest, "checked": check})
    else:
        _print(done, changed, None if is_repository else folder, check=check)
    return Exit.CONFLICT if done.conflicts or done.skipped else Exit.OK


def checkout_of(directory: Path | None) -> tuple[Path, bool]:
    """Return the folder to apply to, and whether it is in a repository: `--dir`, the top of the current repository, or
    the current folder, if that is not the user's home or above it."""
    from holdfast.cli.run.workspace.folder import choose_folder, find_repository

    if directory is not None:
        folder = directory.expanduser().absolute()
        if not folder.is_dir():
            raise CommandError(
                f"{directory} is not a folder", next_step="give --dir your checkout", exit=Exit.NOT_FOUND
            )
        return folder, find_repository(folder) is not None
    chosen = choose_folder(None, Path.cwd(), Path.home())
    if chosen is None:
        raise _no_repository(Path.cwd())
    return chosen.path, chosen.repository


def _no_repository(folder: Path) -> CommandError:
    return CommandError(
        f"{folder} is not in a git repository",
        next_step="go to your checkout, or name it with --dir PATH",
        exit=Exit.NOT_FOUND,
    )


def check_accepted(changed: ChangedFiles, accept: str | None) -> None:
    """Raises `CommandError` if the changes are not those that were accepted."""
    if accept is not None and accept != changed.digest:
        raise CommandError(
            f"thread {changed.thread} has other changes than those you accepted: their digest is {changed.digest}",
            next_step=f"look at them, and accept those: holdfast diff {changed.thread}",
            exit=Exit.CONFLICT,
        )


def consent(
    changed: ChangedFiles,
    around: Surroundings,
    command: str,
    *,
    yes: bool,
    prefix: bytes,
    planned: Callable[[], Iterable[bytes]] | None = None,
) -> None:
    """Name the changed files that run without being started, and ask, unless `yes`. Raises `CommandError`.

    `command` with `--accept` does it without asking. `around` is where the changes go, and `prefix` the folder of the
    workspace there. `planned` returns the files that are written, if these are not all.
    """
    from holdfast.repositories.startup_files import startup_files
    from holdfast.repositories.surroundings import links_after

    all_found = startup_files((prefix + file.path for file in changed.files), links_after(changed, around, prefix))
    found = {path.removeprefix(prefix): why for path, why in all_found.items()}
    if found and planned is not None:
        written = set(planned())
        found = {path: why for path, why in found.items() if path in written}
    for number, (path, why) in enumerate(found.items()):
        if number < _SHOWN:
            note("look at", Cell(shown(path), "bold"), Cell(f"  {why}", "yellow"))
    if found and not yes:
        count = "a file that runs" if len(found) == 1 else f"{len(found)} files that run"
        confirm(
            f"Thread {changed.thread} changes {count} without being started. Have you looked at the changes, "
            f"{changed.digest}?",
            refusal=f"thread {changed.thread} changes {count} without being started, and there is no terminal to ask",
            command=f"holdfast diff {changed.thread}, then {command} --accept {changed.digest}",
            unchanged="nothing was changed",
        )


def _place(top: Path, changed: ChangedFiles) -> Path:
    """Return the folder of the checkout that the workspace was copied from."""
    folder = top / os.fsdecode(changed.prefix)
    if not folder.is_dir() or not folder.resolve().is_relative_to(top.resolve()):
        raise CommandError(
            f"{top} has no folder {os.fsdecode(changed.prefix)}, which thread {changed.thread} began with",
            next_step="go to the checkout that the run began with, or name the folder with --dir PATH",
            exit=Exit.NOT_FOUND,
        )
    return folder


@contextlib.contextmanager
def changed_files(where: Where, thread: str) -> Iterator[tuple[ChangedFiles, Work]]:
    """Yields the changed files of a thread, and what a commit of them says. Contents are in a temporary folder."""
    from holdfast.repositories.branch import Work
    from holdfast.repositories.changes import MOST_BYTES, read_changed_files

    async def fetch(client: Client) -> Work:
        id = await find_thread(client, thread)
        size = 0
        async for piece in _pieces(client, id):
            size += len(piece)
            if size > 2 * MOST_BYTES:
                raise CommandError("the server sends more than fits", next_step=f"holdfast diff {id} --stat")
            spool.write(piece)
        info, run = await client.threads.get(id), await client.runs.get(id)
        return Work(info.title or f"Changes of thread {id}", run.ended_at or run.last_sign_at)

    with tempfile.TemporaryDirectory(prefix="holdfast-apply-") as folder, tempfile.TemporaryFile() as spool:
        work = ask(where, fetch)
        spool.seek(0)
        with explained():
            yield read_changed_files(spool, Path(folder)), work


async def _pieces(client: Client, id: str) -> AsyncIterator[bytes]:
    async for piece in client.runs.changed_files(id):
        yield piece


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Errors of repositories become errors of the command."""
    from holdfast.api.errors import HoldfastError

    try:
        yield
    except HoldfastError as error:
        raise command_error(error) from None


def print_left_out(left_out: tuple[LeftOut, ...]) -> None:
    for each in left_out[:_MOST_LEFT_OUT]:
        note("left out", shown(each.path), hint(f"  {each.why}; copy it with holdfast box cp"))
    if len(left_out) > _MOST_LEFT_OUT:
        note("left out", f"{len(left_out) - _MOST_LEFT_OUT} more files")


def shown(path: bytes) -> str:
    return plain(path.decode("utf-8", "backslashreplace")).replace("\n", "␊")


def _print(done: Applied, changed: ChangedFiles, plain_folder: Path | None, *, check: bool) -> None:
    how = {file.path: "+" if file.before is None else "−" if file.after is None else "✎" for file in changed.files}
    for path in done.changed[:_SHOWN]:
        write_line(Cell(f"  {how.get(path, '✎')} ", ACCENT), shown(path))
    if len(done.changed) > _SHOWN:
        write_line(f"  and {len(done.changed) - _SHOWN} more")
    for path in done.conflicts:
        write_line(Cell("  ✗ ", "red"), shown(path), Cell("  conflict", "red"))
    for path in done.skipped:
        write_line(Cell("  ✗ ", "red"), shown(path), Cell("  changed meanwhile, and left as it is", "red"))
    if done.discarded:
        them = "it" if len(done.discarded) == 1 else "them"
        told = f"{_files(len(done.discarded))} applied before, and discarded since: {shown(done.discarded[0])}"
        more = " …" if len(done.discarded) > 1 else ""
        note("left", told + more, hint(f"  bring {them} back with holdfast apply {changed.thread} --again"))
    if not (done.changed or done.conflicts or done.skipped):
        already = " that is not there already" if done.unchanged else ""
        note("nothing", f"thread {changed.thread} has no {'other ' if done.discarded else ''}change{already}")
    elif check:
        note("checked", f"nothing was written; without --check, {_files(len(done.changed))} would change")
        note("digest", changed.digest, hint(f"  holdfast apply {changed.thread} --accept {changed.digest}"))
    elif plain_folder is None:
        note("applied", f"{_files(len(done.changed))}, not staged", hint("  see them with git status and git diff"))
    else:
        note("applied", f"{_files(len(done.changed))} in {plain_folder}", hint(f"  holdfast diff {changed.thread}"))
    if done.conflicts and not check:
        note("next", f"resolve {_files(len(done.conflicts))}: git status, edit, git add")
    if changed.ignored:
        note("ignored", f"{_files(changed.ignored)}{IGNORED}", hint("  copy them with holdfast box cp"))
    if any(file.path.rpartition(b"/")[2].lower() == b".gitattributes" for file in changed.files):
        note("look at", "a .gitattributes has changed: it decides which of your git filters run on which files")
    print_left_out(changed.left_out)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _document(done: Applied) -> dict[str, object]:
    return {
        "changed": [shown(path) for path in done.changed],
        "conflicts": [shown(path) for path in done.conflicts],
        "skipped": [shown(path) for path in done.skipped],
        "unchanged": done.unchanged,
        "discarded": [shown(path) for path in done.discarded],
    }


def _left_out(changed: ChangedFiles) -> dict[str, object]:
    return {"leftOut": [{"path": shown(each.path), "why": each.why} for each in changed.left_out]}
