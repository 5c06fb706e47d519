"""Routes of the toolbox about git repositories. They run the git of the box.

Credentials go to git in its environment, never in its arguments, which every process of the box can read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.box.process import Completed
from holdfast.api.errors.boxes import CannotExecute, ExecTimeout
from holdfast.compat.daytona.http.errors import ApiError, bad_request, not_supported
from holdfast.compat.daytona.http.requests import answer, body_of, nothing, text_of, while_connected
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.toolbox.access import Opened, opened

_SECONDS: Final = 1800.0
_MAX_OUTPUT: Final = 16 * 1024 * 1024
_MOST_NAMES: Final = 100_000
"""Files of a status, and branches and remotes of a repository. A box can have another program called git."""
_EXCERPT: Final = 4096
"""Bytes at the start and at the end of an output in which the reason of a failure is searched."""
_SMALL: Final = 65_536
_MOST_COMMITS: Final = 10_000
_SCOPES: Final = ("global", "local", "system", "worktree")
_HELPER: Final = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$GIT_USERNAME" "$GIT_PASSWORD"; }; f'
_STATUSES: Final = {
    ".": "Unmodified",
    "?": "Untracked",
    "M": "Modified",
    "T": "Modified",
    "A": "Added",
    "D": "Deleted",
    "R": "Renamed",
    "C": "Copied",
    "U": "Updated but unmerged",
}

Path = Annotated[str, Field(min_length=1, max_length=4095, pattern=r"^[^\x00]+$")]
Text = Annotated[str, Field(max_length=65_536, pattern=r"^[^\x00]*$")]
Word = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f]+$")]
Reference = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x20-][^\x00-\x20]*$")]
"""A branch, commit or remote. It does not begin with a dash, so git takes none for an option."""
Secret = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00\n\r]*$")]
Files = Annotated[list[Path], Field(max_length=10_000)]


class Repository(Body):
    path: Path


class Add(Repository):
    files: Files


class Branch(Repository):
    name: Reference


class Checkout(Repository):
    branch: Reference


class Credentials(Body):
    username: Secret | None = None
    password: Secret | None = None


class Clone(Repository, Credentials):
    url: Word
    branch: Reference | None = None
    commit_id: Annotated[Reference | None, Field(alias="commit_id")] = None
    depth: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    insecure_skip_tls: Annotated[bool | None, Field(alias="insecure_skip_tls")] = None


class Commit(Repository):
    message: Text
    author: Word
    email: Word
    allow_empty: Annotated[bool, Field(alias="allow_empty")] = False


class Sync(Repository, Credentials):
    branch: Reference | None = None
    remote: Reference | None = None
    set_upstream: Annotated[bool, Field(alias="set_upstream")] = False


class Init(Repository):
    bare: bool = False
    initial_branch: Annotated[Reference | None, Field(alias="initial_branch")] = None


class Reset(Repository):
    mode: Annotated[str, Field(max_length=20)] | None = None
    target: Reference | None = None
    files: Files | None = None


class Restore(Repository):
    files: Files
    staged: bool | None = None
    worktree: bool | None = None
    source: Reference | None = None


class Remote(Repository):
    name: Reference
    url: Word
    fetch: bool = False
    overwrite: bool = False


class Setting(Body):
    path: Path | None = None
    key: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z][^\x00-\x1f=]*$")]
    value: Text
    scope: str | None = None


class User(Body):
    path: Path | None = None
    name: Word
    email: Word
    scope: str | None = None


class Login(Body):
    username: Secret
    password: Secret
    host: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9.:\[\]-]*$")] | None = None
    protocol: Annotated[str, Field(pattern=r"^(https?)?$")] | None = None


# --- running git ---


def _check_url(url: str) -> None:
    """Other transports run programs or read files that a caller names; those are the box's, but nobody means that."""
    if url.startswith("-") or "::" in url.partition("/")[0]:
        raise bad_request(f"{url[:100]!r} is not the URL of a repository")


class _Git:
    """Runs git in one repository of a box, for one request."""

    def __init__(self, request: Request, at: Opened, path: str | None, login: Credentials | None = None) -> None:
        self._request = request
        self._at = at
        self._path = path
        self._login = login

    async def __call__(self, *words: str, env: Mapping[str, str] | None = None, check: bool = True) -> Completed:
        options, variables = [], {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(env or {})}
        if self._login is not None and (self._login.username or self._login.password):
            options = ["-c", "credential.helper=", "-c", f"credential.helper={_HELPER}"]
            variables["GIT_USERNAME"] = self._login.username or "git"
            variables["GIT_PASSWORD"] = self._login.password or ""
        place = [] if self._path is None else ["-C", self._path]
        running = self._at.box.exec(
            ["git", *options, *place, *words],
            env=self._at.environment(variables),
            timeout=_SECONDS,
            max_output=_MAX_OUTPUT,
        )
        try:
            done = await while_connected(self._request, running)
        except CannotExecute:
            raise not_supported("there is no git in this sandbox: use an image that has it") from None
        except ExecTimeout:
            raise ApiError(408, f"git {words[0]} did not end within {_SECONDS:.0f} seconds") from None
        if check and not done.ok:
            raise _failure(done)
        return done


_FAILURES: Final = (
    (401, "GIT_AUTH_FAILED", r"authentication failed|could not read (username|password)|terminal prompts disabled"),
    (409, "GIT_MERGE_CONFLICT", r"merge conflict|automatic merge failed|unmerged files|not possible to fast-forward"),
    (409, "GIT_DIRTY_WORKTREE", r"would be overwritten|please commit your changes or stash"),
    (409, "GIT_PUSH_REJECTED", r"\[rejected\]|non-fast-forward|fetch first"),
    (422, "GIT_REMOTE_REJECTED", r"\[remote rejected\]|pre-receive hook declined"),
    (409, "GIT_BRANCH_EXISTS", r"a branch named .* already exists"),
    (
        404,
        "GIT_BRANCH_NOT_FOUND",
        r"branch '.*' not found|remote branch .* not found|couldn't find remote ref|pathspec '.*' did not match"
        r"|unknown revision|not a valid object name|invalid reference|src refspec .* does not match",
    ),
    (
        404,
        "GIT_REPO_NOT_FOUND",
        r"not a git repository|cannot change to|repository .*not found|does not appear to be a git repository"
        r"|repository '.*' does not exist",
    ),
    (
        502,
        "GIT_TRANSPORT_FAILED",
        r"could not resolve host|connection (refused|timed out|reset)|failed to connect|unable to access"
        r"|could not read from remote repository",
    ),
    (409, "CONFLICT", r"already exists"),
    (
        400,
        "BAD_REQUEST",
        r"nothing (added )?to commit|working tree clean|is not a valid branch name|cannot delete branch",
    ),
)


def _failure(done: Completed) -> ApiError:
    # Only in excerpts: some patterns take time that grows with the square of the length.
    text = _excerpt(done.stderr or done.stdout)
    both = f"{text}\n{_excerpt(done.stdout)}".lower()
    for status, code, pattern in _FAILURES:
        if re.search(pattern, both):
            return ApiError(status, text[-2000:] or both.strip()[-2000:], code)
    return ApiError(500, text[-2000:] or f"git exited with {done.exit_code}")


def _excerpt(output: bytes) -> str:
    if len(output) > 2 * _EXCERPT:
        output = output[:_EXCERPT] + b"\n" + output[-_EXCERPT:]
    return output.decode("utf-8", "replace").strip()


def _split(text: str, separator: str | None, what: str) -> list[str]:
    """Split the output of git. Raises if it has more parts than any repository."""
    parts = text.split(separator, _MOST_NAMES)
    if len(parts) > _MOST_NAMES:
        raise ApiError(500, f"git lists more than {_MOST_NAMES} {what}")
    return parts


# --- repositories ---


async def clone(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Clone)
        _check_url(asked.url)
        git = _Git(request, at, None, asked)
        words = ["clone"]
        if asked.branch:
            words += ["--branch", asked.branch]
        if asked.depth:
            words += ["--depth", str(asked.depth)]
        if not asked.branch and not asked.commit_id:
            words.append("--single-branch")
        env = {"GIT_SSL_NO_VERIFY": "1"} if asked.insecure_skip_tls else {}
        await git(*words, "--", asked.url, asked.path, env=env)
        if asked.commit_id:
            there = _Git(request, at, asked.path, asked)
            await there("checkout", "--detach", asked.commit_id)
    return nothing()


async def init(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Init)
        words = ["init"]
        if asked.bare:
            words.append("--bare")
        if asked.initial_branch:
            words.append(f"--initial-branch={asked.initial_branch}")
        await _Git(request, at, None)(*words, "--", asked.path)
    return nothing(201)


async def status(request: Request) -> Response:
    async with opened(request) as at:
        git = _Git(request, at, text_of(request, "path"))
        done = await git("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all")
    # On a thread, because it may take a while, and the server has other requests.
    return answer(await asyncio.to_thread(read_status, done.stdout.decode("utf-8", "replace")))


def read_status(text: str) -> dict[str, Any]:
    """The output of `git status --porcelain=v2 --branch -z` as Daytona tells it."""
    try:
        return _read_status(text)
    except (IndexError, ValueError):
        raise ApiError(500, "git of this sandbox printed something else than a status") from None


def _read_status(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"currentBranch": "", "fileStatus": [], "ahead": 0, "behind": 0, "branchPublished": False}
    commit = ""
    parts = iter(_split(text, "\0", "files"))
    for part in parts:
        kind, _, rest = part.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            if name == "branch.oid":
                commit = value
            elif name == "branch.head":
                found["detached"] = value == "(detached)"
                found["currentBranch"] = commit[:12] if value == "(detached)" else value
            elif name == "branch.upstream":
                found["upstream"], found["branchPublished"] = value, True
            elif name == "branch.ab":
                ahead, _, behind = value.partition(" ")
                found["ahead"], found["behind"] = int(ahead), -int(behind)
        elif kind in ("?", "!"):
            found["fileStatus"].append(_file(rest, "??"))
        elif kind == "1":
            found["fileStatus"].append(_file(rest.split(" ", 7)[7], rest[:2]))
        elif kind == "2":
            found["fileStatus"].append(_file(rest.split(" ", 8)[8], rest[:2], next(parts, "")))
        elif kind == "u":
            found["fileStatus"].append(_file(rest.split(" ", 9)[9], "UU"))
    return found


def _file(name: str, states: str, extra: str = "") -> dict[str, str]:
    staging, worktree = (_STATUSES.get(state, "Modified") for state in states)
    return {"name": name, "staging": staging, "worktree": worktree, "extra": extra}


async def add(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Add)
        await _Git(request, at, asked.path)("add", "--", *asked.files)
    return nothing()


async def commit(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Commit)
        git = _Git(request, at, asked.path)
        person = {
            "GIT_AUTHOR_NAME": asked.author,
            "GIT_AUTHOR_EMAIL": asked.email,
            "GIT_COMMITTER_NAME": asked.author,
            "GIT_COMMITTER_EMAIL": asked.email,
        }
        words = ["commit", "--no-gpg-sign", f"--message={asked.message}"]
        if asked.allow_empty:
            words.append("--allow-empty")
        if not asked.message:
            words.append("--allow-empty-message")
        await git(*words, env=person)
        done = await git("rev-parse", "HEAD")
    return answer({"hash": done.text.strip()})


async def history(request: Request) -> Response:
    async with opened(request) as at:
        git = _Git(request, at, text_of(request, "path"))
        done = await git("log", f"--max-count={_MOST_COMMITS}", "-z", "--format=%H%x1f%an%x1f%ae%x1f%cI%x1f%B")
    commits = []
    for entry in done.text.split("\0", _MOST_COMMITS)[:_MOST_COMMITS]:
        fields = entry.split("\x1f", 4)
        if len(fields) == 5:
            names = ("hash", "author", "email", "timestamp", "message")
            commits.append(dict(zip(names, fields, strict=True)))
    return answer(commits)


async def reset(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Reset)
        mode = asked.mode or ("" if asked.files else "mixed")
        if mode not in ("", "soft", "mixed", "hard", "merge", "keep"):
            raise bad_request(f"mode {mode!r}: one of soft, mixed, hard, merge and keep is expected")
        words = ["reset"]
        if mode and not asked.files:
            words.append(f"--{mode}")
        await _Git(request, at, asked.path)(*words, asked.target or "HEAD", "--", *(asked.files or []))
    return nothing()


async def restore(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Restore)
        words = ["restore"]
        if asked.staged:
            words.append("--staged")
        if asked.worktree or (asked.worktree is None and not asked.staged):
            words.append("--worktree")
        if asked.source:
            words.append(f"--source={asked.source}")
        await _Git(request, at, asked.path)(*words, "--", *asked.files)
    return nothing()


# --- branches ---


async def list_branches(request: Request) -> Response:
    async with opened(request) as at:
        git = _Git(request, at, text_of(request, "path"))
        done = await git("for-each-ref", "--format=%(refname:short)", "refs/heads")
        current = await git("symbolic-ref", "--short", "-q", "HEAD", check=False)
    return answer({"branches": _split(done.text, None, "branches"), "current": current.text.strip()})


async def create_branch(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Branch)
        await _Git(request, at, asked.path)("checkout", "-b", asked.name)
    return nothing(201)


async def delete_branch(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Branch)
        await _Git(request, at, asked.path)("branch", "-D", "--", asked.name)
    return nothing(204)


async def checkout(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Checkout)
        await _Git(request, at, asked.path)("checkout", asked.branch, "--")
    return nothing()


# --- remotes ---


async def list_remotes(request: Request) -> Response:
    async with opened(request) as at:
        git = _Git(request, at, text_of(request, "path"))
        await git("rev-parse", "--git-dir")
        done = await git("config", "--get-regexp", r"^remote\..*\.url$", check=False)
    remotes = []
    for line in _split(done.text, "\n", "remotes"):
        if not line:
            continue
        key, _, url = line.partition(" ")
        remotes.append({"name": key.removeprefix("remote.").removesuffix(".url"), "url": url})
    return answer({"remotes": remotes})


async def add_remote(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Remote)
        _check_url(asked.url)
        git = _Git(request, at, asked.path)
        known = (await git("remote")).text.split()
        if asked.name in known and not asked.overwrite:
            raise ApiError(409, f"remote {asked.name} already exists")
        await git("remote", "set-url" if asked.name in known else "add", "--", asked.name, asked.url)
        if asked.fetch:
            await git("fetch", "--", asked.name)
    return nothing(201)


async def push(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Sync)
        git = _Git(request, at, asked.path, asked)
        branch = asked.branch or await _current_branch(git)
        words = ["push", *(["--set-upstream"] if asked.set_upstream else [])]
        await git(*words, "--", asked.remote or "origin", branch)
    return nothing()


async def pull(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Sync)
        git = _Git(request, at, asked.path, asked)
        branch = asked.branch or await _current_branch(git)
        await git("pull", "--no-rebase", "--no-edit", "--", asked.remote or "origin", branch)
    return nothing()


async def _current_branch(git: _Git) -> str:
    done = await git("symbolic-ref", "--short", "HEAD", check=False)
    if not done.ok:
        if b"not a git repository" in done.stderr:
            raise _failure(done)
        raise bad_request("no branch is checked out: name one")
    return done.text.strip()


# --- settings ---


def _scope(scope: str | None, path: str | None) -> tuple[str, str | None]:
    """The option of git for a scope, and the repository that it needs."""
    name = scope or "global"
    if name not in _SCOPES:
        raise bad_request(f"scope {name[:50]!r}: one of {', '.join(_SCOPES)} is expected")
    if name in ("local", "worktree") and not path:
        raise bad_request(f"scope {name} needs the path of a repository")
    return f"--{name}", path if name in ("local", "worktree") else None


async def get_setting(request: Request) -> Response:
    async with opened(request) as at:
        key = Setting(key=text_of(request, "key"), value="").key
        scope, path = _scope(request.query_params.get("scope"), request.query_params.get("path"))
        done = await _Git(request, at, path)("config", scope, "--get", key, check=False)
    if done.exit_code not in (0, 1):
        raise _failure(done)
    return answer({"value": done.text.removesuffix("\n")} if done.ok else {})


async def set_setting(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, Setting)
        scope, path = _scope(asked.scope, asked.path)
        await _Git(request, at, path)("config", scope, asked.key, asked.value)
    return nothing()


async def set_user(request: Request) -> Response:
    async with opened(request) as at:
        asked = await body_of(request, User)
        scope, path = _scope(asked.scope, asked.path)
        git = _Git(request, at, path)
        await git("config", scope, "user.name", asked.name)
        await git("config", scope, "user.email", asked.email)
    return nothing()


async def log_in(request: Request) -> Response:
    """Keep credentials in the box, as plain text in the home, for every later command. That is what was asked for."""
    async with opened(request) as at:
        asked = await body_of(request, Login)
        host = asked.host or "github.com"
        if urlsplit(f"https://{host}").hostname is None:
            raise bad_request(f"host {host!r} is not a host")
        await _Git(request, at, None)("config", "--global", "credential.helper", "store")
        told = (
            f"protocol={asked.protocol or 'https'}\nhost={host}\nusername={asked.username}\npassword={asked.password}\n"
        )
        done = await at.box.exec(
            ["git", "credential", "approve"],
            env=at.environment(),
            stdin=f"{told}\n".encode(),
            timeout=60,
            max_output=_SMALL,
        )
        if not done.ok:
            raise _failure(done)
    return nothing()


def routes() -> list[Route]:
    table: list[tuple[str, str, Any]] = [
        ("POST", "/git/clone", clone),
        ("POST", "/git/init", init),
        ("GET", "/git/status", status),
        ("POST", "/git/add", add),
        ("POST", "/git/commit", commit),
        ("GET", "/git/history", history),
        ("POST", "/git/reset", reset),
        ("POST", "/git/restore", restore),
        ("GET", "/git/branches", list_branches),
        ("POST", "/git/branches", create_branch),
        ("DELETE", "/git/branches", delete_branch),
        ("POST", "/git/checkout", checkout),
        ("GET", "/git/remotes", list_remotes),
        ("POST", "/git/remotes", add_remote),
        ("POST", "/git/push", push),
        ("POST", "/git/pull", pull),
        ("GET", "/git/config", get_setting),
        ("POST", "/git/config", set_setting),
        ("POST", "/git/config/user", set_user),
        ("POST", "/git/credentials", log_in),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
