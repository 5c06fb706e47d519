"""`holdfast push` and `holdfast pr`: the changes of a thread, on a remote branch, by this machine's credentials."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.changes.apply import (
    AcceptOption,
    DirectoryOption,
    changed_files,
    check_accepted,
    consent,
    explained,
    print_left_out,
)
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.run.workspace.files import MIRRORS
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.confirmation import YesOption
from holdfast.cli.terminal.console import Cell, note, write_json, write_line

if TYPE_CHECKING:
    from holdfast.repositories.branch import Branch, Work
    from holdfast.repositories.changes import ChangedFiles
    from holdfast.repositories.forge import Forge
    from holdfast.repositories.git import Git

_T = TypeVar("_T")

BranchOption = Annotated[
    str | None, Option("--branch", metavar="NAME", help="Name of the branch. Default: holdfast/THREAD.")
]
RemoteOption = Annotated[str, Option("--remote", metavar="NAME", help="Remote of your checkout to push to.")]


def push(
    thread: RunThreadArgument,
    branch: BranchOption = None,
    remote: RemoteOption = "origin",
    directory: DirectoryOption = None,
    accept: AcceptOption = None,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Push the changes of a thread as a branch. Never forces, and runs again without effect.

    It uses the credentials of your git, which the box never sees. In your checkout, the branch is created there too;
    elsewhere, a thread that began with --repo URL is pushed to that URL.

    \b
    holdfast push t-1
    holdfast push t-1 --branch fix-price --remote origin
    """
    pushed = _pushed(where, thread, branch, remote, directory, accept, "push", yes=yes, prepare=_nothing)
    with pushed as (made, url, is_new, changed, _, _):
        if as_json:
            write_json({"branch": made.name, "commit": made.commit, "remote": url, "new": is_new})
            return
        _print(made, url, is_new, changed)


def pull_request(
    thread: RunThreadArgument,
    title: Annotated[str | None, Option("--title", metavar="TEXT", help="Default: the title of the thread.")] = None,
    body: Annotated[str | None, Option("--body", metavar="TEXT", help="Description of the pull request.")] = None,
    base: Annotated[
        str | None, Option("--base", metavar="BRANCH", help="Branch to merge into. Default: that of the repository.")
    ] = None,
    draft: Annotated[bool, Option("--draft", help="Open it as a draft.")] = False,
    api: Annotated[
        str | None, Option("--api", metavar="URL", help="API of the forge. Default: that of the remote's host.")
    ] = None,
    branch: BranchOption = None,
    remote: RemoteOption = "origin",
    directory: DirectoryOption = None,
    accept: AcceptOption = None,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Push the changes of a thread, and open a pull request for them. Prints its URL.

    For GitHub, and forges with the same API. The token is GH_TOKEN or GITHUB_TOKEN (for another host than github.com
    GH_ENTERPRISE_TOKEN, or --api with the former), or what git has stored for the host. If there is a
    pull request for the branch already, its URL is printed.

    \b
    holdfast pr t-1 --title "Apply the discount once"
    """
    from holdfast.repositories.address import without_user

    def find_forge(url: str) -> Forge:
        """Before anything is pushed, because nobody wants a branch without its pull request."""
        from holdfast.repositories.forge import Forge, api_of, place_of

        host, owner, name = place_of(url)
        return Forge(api or api_of(host), owner, name, _token(url, host, os.environ, is_named=api is not None))

    pushed = _pushed(where, thread, branch, remote, directory, accept, "pr", yes=yes, prepare=find_forge)
    with pushed as (made, url, is_new, changed, work, forge):
        into = base or forge.default_branch()
        text = body if body is not None else f"Made by an agent on thread {changed.thread} of Holdfast."
        opened = forge.open_pull_request(made.name, into, title or work.title, text, draft=draft)
    if as_json:
        document = {"url": opened.url, "number": opened.number, "new": opened.is_new}
        write_json({**document, "branch": made.name, "commit": made.commit, "remote": without_user(url)})
        return
    _print(made, url, is_new, changed)
    if not opened.is_new:
        note("open", f"pull request {opened.number} was open already")
    write_line(opened.url)


@contextlib.contextmanager
def _pushed(
    where: Where,
    thread: str,
    branch: str | None,
    remote: str,
    directory: Path | None,
    accept: str | None,
    command: str,
    *,
    yes: bool,
    prepare: Callable[[str], _T],
) -> Iterator[tuple[Branch, str, bool, ChangedFiles, Work, _T]]:
    """Push, and yield the branch, the remote's URL without credentials, whether anything was new, and what `prepare`
    returned for the URL before anything was pushed.
    """
    from holdfast.repositories.branch import PROTOCOLS, files_at_begin, make_branch
    from holdfast.repositories.branch import push as push_branch
    from holdfast.repositories.git import Git
    from holdfast.repositories.surroundings import outside_repositories

    with changed_files(where, thread) as (changed, work), explained():
        check_accepted(changed, accept)
        yes = yes or accept is not None
        git = Git.of_user(os.environ, PROTOCOLS)
        name = branch or f"holdfast/{changed.thread}"
        with _repository(git, changed, remote, directory, home_or_default(where.home)) as (folder, url, to):
            prepared = prepare(url)
            around = files_at_begin(git, folder, changed)
            changed = outside_repositories(changed, around, changed.prefix)
            consent(changed, around, f"holdfast {command} {thread}", yes=yes, prefix=changed.prefix)
            made = make_branch(git, folder, changed, name, work)
            is_new = push_branch(git, folder, made, to)
            yield made, url, is_new, changed, work, prepared


@contextlib.contextmanager
def _repository(
    git: Git, changed: ChangedFiles, remote: str, directory: Path | None, home: Path
) -> Iterator[tuple[Path, str, str]]:
    """Yields a repository with the commit that the thread began with, the URL to push to, and the name for git."""
    from holdfast.cli.run.workspace.folder import find_repository
    from holdfast.repositories.address import parse_address, without_user
    from holdfast.repositories.branch import remote_url
    from holdfast.repositories.mirrors import Mirrors

    source = changed.source
    commit = None if source is None else source.commit
    here = directory or find_repository(Path.cwd())
    if here is not None and (
        directory is not None
        or commit is None
        or not git.try_(here, "cat-file", "-e", f"{commit}^{{commit}}").returncode
    ):
        url = remote_url(git, here, remote)
        if url is None:
            raise CommandError(
                f"{here} has no remote {remote!r}", next_step="git remote add, or --remote NAME", exit=Exit.NOT_FOUND
            )
        yield here, without_user(url), remote
        return
    if source is None or source.repository is None or commit is None:
        raise CommandError(
            f"thread {changed.thread} began with no repository that has a URL",
            next_step="go to your checkout, or name it with --dir PATH",
            exit=Exit.NOT_FOUND,
        )
    address = replace(parse_address(source.repository, Path("/")), ref=commit)
    with Mirrors(home / MIRRORS, os.environ).fetched(address) as mirror:
        yield mirror, address.url, address.url


def _nothing(url: str) -> None:
    """A push needs nothing but git."""


def _token(url: str, host: str, environment: Mapping[str, str], *, is_named: bool) -> str:
    """Return the token for the forge: from the environment, or what git has stored for its host.

    A token of GitHub is sent to another host only if the user has named that (`is_named`): the remote of a repository
    may be anybody's.
    """
    from urllib.parse import urlsplit

    from holdfast.repositories.git import Git

    is_github = is_named or host == "github.com" or host.endswith(".ghe.com")
    names = ("GH_TOKEN", "GITHUB_TOKEN") if is_github else ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
    for name in names:
        if environment.get(name):
            return environment[name]
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        asked = f"protocol=https\nhost={parts.netloc.rpartition('@')[2]}\n\n"
        told = Git.of_user(environment).try_(Path.cwd(), "credential", "fill", stdin=asked.encode())
        for line in told.stdout.decode("utf-8", "replace").splitlines():
            if line.startswith("password="):
                return line.removeprefix("password=")
    raise CommandError(
        "there is no token for the forge",
        next_step=f"set {names[0]}, or store one with git credential",
        exit=Exit.NOT_AUTHORISED,
    )


def _print(made: Branch, url: str, is_new: bool, changed: ChangedFiles) -> None:
    about = f"  {made.commit[:12]} to {url}{'' if is_new else ', which has it already'}"
    note("pushed" if is_new else "unchanged", made.name, Cell(about, "dim"))
    print_left_out(changed.left_out)
