"""Pull requests and files of repositories, by the token that the host keeps.

A session may use a repository if its box may use a secret with a git binding for it (`--secret NAME`), and change
something there if it may push (`NAME:push`). The token never gets into the box.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from holdfast.api.errors import Forbidden, InvalidRequest
from holdfast.api.errors.repositories import InvalidRepository
from holdfast.api.secrets import Placement, SecretRecord
from holdfast.egress.addresses import refusal
from holdfast.egress.bound.rules import SecretUse
from holdfast.redaction import Scrubber
from holdfast.repositories.forge import Forge, api_of, place_of
from holdfast.runs.launch.plan import session_options
from holdfast.runs.run_log import RunLog
from holdfast.sessions.tools.caller import Caller, Handler

MAX_FILE: Final = 256 * 1024
"""Bytes of a file."""
_USUAL: Final = 30
_MOST_PATCH: Final = 8_000
_MOST_TEXT: Final = 16_000


class SecretSource(Protocol):
    def find(self, name: str) -> SecretRecord | None: ...

    def reveal(self, name: str) -> str:
        """Raises `SecretMissing`."""
        ...


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that a session may use."""

    host: str
    owner: str
    name: str
    secret: str
    push: bool

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"


class GitHub:
    def __init__(
        self, secrets: SecretSource, log: RunLog, api: Callable[[str], str] = api_of, *, public_only: bool = False
    ) -> None:
        """`api` returns the base URL of the API of a git host. With `public_only`, no address of this machine or of a
        private network is reached, whatever name it has.
        """
        self._may_reach = _is_public if public_only else None
        self._secrets = secrets
        self._log = log
        self._api = api

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "create_pull_request": self.create,
            "update_pull_request": self.update,
            "list_pull_requests": self.list_,
            "inspect_pull_request": self.inspect,
            "report_git_state": self.report,
            "read_repo_file": self.read_file,
            "list_repositories": self.repositories,
        }

    async def create(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        repository = self._find(caller, input, push=True)

        def work(forge: Forge) -> Any:
            base = input.get("base") or forge.default_branch()
            made = forge.open_pull_request(
                str(input["branch"]), base, str(input["title"]), str(input.get("body", "")), draft=False
            )
            return forge.pull_request(made.number)

        return _pull(await self._ask(repository, work))

    async def update(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        repository = self._find(caller, input, push=True)
        number = int(input["prNumber"])
        changes = {name: input[name] for name in ("title", "body", "state") if name in input}
        if not changes and "labels" not in input:
            raise InvalidRequest("say what to change: title, body, state or labels")

        def work(forge: Forge) -> Any:
            if "labels" in input:
                forge.pull_request(number)  # labels are those of issues: make sure that it is a pull request
                forge.set_labels(number, input["labels"])
            return forge.update_pull_request(number, changes) if changes else forge.pull_request(number)

        return _pull(await self._ask(repository, work))

    async def list_(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        repository = self._find(caller, input)
        state, limit = input.get("state", "open"), input.get("limit", _USUAL)
        found = await self._ask(repository, lambda forge: forge.pull_requests(state, limit))
        return {"pulls": [_summary(each) for each in found[:limit]]}

    async def inspect(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        repository = self._find(caller, input)
        number = int(input["prNumber"])
        most_files, most_comments = input.get("filesLimit", _USUAL), input.get("commentsLimit", _USUAL)

        def work(forge: Forge) -> tuple[Any, Any, Any]:
            return (
                forge.pull_request(number),
                forge.changed_files(number, most_files) if most_files else [],
                forge.comments(number, most_comments) if most_comments else [],
            )

        pull, files, comments = await self._ask(repository, work)
        return {
            "data": {
                **_summary(pull),
                "body": _text(pull.get("body"), _MOST_TEXT),
                "files": [
                    {
                        "path": _text(each.get("filename")),
                        "status": _text(each.get("status")),
                        "additions": _number(each.get("additions")),
                        "deletions": _number(each.get("deletions")),
                        "patch": _text(each.get("patch"), _MOST_PATCH),
                    }
                    for each in files[:most_files]
                ],
                "comments": [
                    {
                        "author": _text((each.get("user") or {}).get("login")),
                        "body": _text(each.get("body"), _MOST_TEXT),
                        "createdAt": _text(each.get("created_at")),
                    }
                    for each in comments[:most_comments]
                ],
            }
        }

    async def report(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        names = {"branch": "branch", "baseBranch": "base", "commitCount": "commits"}
        told = {names[name]: value for name, value in input.items()}
        await self._log.append(caller.id, self._log.entry({"type": "signal.git.state", **told}, author=caller.id))
        return {"ok": True}

    async def read_file(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        repository = self._find(caller, input)
        path, ref = str(input["path"]).lstrip("/"), input.get("ref")
        if not path or any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidRequest(f"{path[:200]!r} is not the path of a file in a repository")
        data = await self._ask(repository, lambda forge: forge.file(path, ref, MAX_FILE + 1))
        truncated, data = len(data) > MAX_FILE, data[:MAX_FILE]
        try:
            content, encoding = data.decode(), "utf-8"
        except UnicodeDecodeError as error:
            if truncated and error.start >= MAX_FILE - 3:  # it was cut within a character
                content, encoding = data[: error.start].decode(), "utf-8"
            else:
                content, encoding = base64.b64encode(data).decode(), "base64"
        return {
            "content": content,
            "encoding": encoding,
            "truncated": truncated,
            "path": path,
            "repo": repository.full_name,
            "ref": ref or "",
        }

    async def repositories(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        found = self._allowed(caller)
        return {"repos": [{"fullName": each.full_name, "host": each.host, "push": each.push} for each in found]}

    # --- rights ---

    def _allowed(self, caller: Caller) -> list[Repository]:
        """Returns the repositories that the secrets of the session's box are bound to."""
        found: dict[tuple[str, str, str], Repository] = {}
        for text in session_options(caller.row.runs).box.network.secrets:
            use = SecretUse.parse(text)
            record = self._secrets.find(use.name)
            for binding in () if record is None else record.bindings:
                for path in binding.repositories if binding.placement is Placement.GIT else ():
                    owner, _, name = path.rpartition("/")
                    key = (binding.host, owner, name)
                    if key not in found or (use.push and not found[key].push):
                        found[key] = Repository(binding.host, owner, name, use.name, use.push)
        return list(found.values())

    def _find(self, caller: Caller, input: Mapping[str, Any], *, push: bool = False) -> Repository:
        """Returns the repository that a call is about. Raises `Forbidden` if the session may not use it."""
        allowed = self._allowed(caller)
        host: str | None = None
        if "repoUrl" in input:
            host, owner, name = place_of(str(input["repoUrl"]))
        elif "repo" in input:
            owner, name = str(input.get("owner", "")), str(input["repo"])
        else:
            url = (caller.row.runs.source or {}).get("repository")
            if not isinstance(url, str):
                if len(allowed) == 1:
                    return _may(allowed[0], push)
                raise InvalidRequest("this session has no repository: name one with owner and repo")
            try:
                host, owner, name = place_of(url)
            except InvalidRepository:
                raise InvalidRequest("name the repository with owner and repo") from None
        for each in allowed:
            same_owner = each.owner == owner or not owner
            if each.name == name and same_owner and host in (None, "", each.host.partition(":")[0]):
                return _may(each, push)
        raise Forbidden(
            f"this session has no secret for the repository {f'{owner}/' if owner else ''}{name}",
            hint="holdfast secret set NAME --git HOST/OWNER/NAME, and create the session with --secret NAME",
        )

    async def _ask(self, repository: Repository, work: Callable[[Forge], Any]) -> Any:
        token = self._secrets.reveal(repository.secret)
        forge = Forge(self._api(repository.host), repository.owner, repository.name, token, self._may_reach)
        try:
            return await asyncio.to_thread(work, forge)
        except Exception as error:
            message = getattr(error, "message", None)
            if isinstance(message, str):
                error.message = Scrubber(token).text(message)  # type: ignore[attr-defined]
            raise


def _is_public(address: str) -> bool:
    return refusal(address) is None


def _may(repository: Repository, push: bool) -> Repository:
    if push and not repository.push:
        raise Forbidden(
            f"this session may read {repository.full_name}, and not change it",
            hint=f"create it with --secret {repository.secret}:push",
        )
    return repository


def _pull(pull: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "number": _number(pull.get("number")),
        "url": _text(pull.get("html_url")),
        "title": _text(pull.get("title")),
        "state": _text(pull.get("state")),
    }


def _summary(pull: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_pull(pull),
        "head": _text((pull.get("head") or {}).get("ref")),
        "base": _text((pull.get("base") or {}).get("ref")),
        "author": _text((pull.get("user") or {}).get("login")),
        "draft": pull.get("draft") is True,
    }


def _text(value: Any, most: int = 1000) -> str:
    return value[:most] if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if type(value) is int else 0
