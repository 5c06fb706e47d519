"""A stand-in for a forge: bare repositories on disk, and the parts of GitHub's REST API about pull requests and files.

It answers as api.github.com does: the same paths, documents, statuses and messages for the mistakes that callers make.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.testing.json_server import JsonServer

_DOCS: Final = "https://docs.github.com/rest"


class Forge(JsonServer):
    """Serves repositories below a folder as `OWNER/NAME.git`. Use it in a `with` block."""

    def __init__(self, folder: Path, *, token: str) -> None:
        super().__init__()
        self.folder = folder
        self.token = token
        self.pulls: list[dict[str, Any]] = []
        self.files: dict[int, list[dict[str, Any]]] = {}
        """The changed files of pull requests, by number."""
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and `Authorization` of each request."""
        self.lock = threading.Lock()

    def create(self, owner: str, name: str, *, branch: str = "main") -> Path:
        """Create an empty repository. Its path is also its URL for git."""
        path = self.folder / owner / f"{name}.git"
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["git", "init", "-q", "--bare", "-b", branch, str(path)], check=True, capture_output=True, timeout=60
        )
        return path

    @property
    def api(self) -> str:
        return self.url

    # --- answers ---

    def respond(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        return self.answer(method, target, headers.get("authorization"), body)

    def answer(self, method: str, target: str, authorization: str | None, body: bytes) -> tuple[int, Any]:
        self.requests.append((method, target, authorization))
        if authorization != f"Bearer {self.token}":
            return 401, _message("Bad credentials")
        parts = urlsplit(target)
        steps = parts.path.strip("/").split("/")
        if len(steps) < 3 or steps[0] != "repos":
            return 404, _message("Not Found")
        owner, name, *rest = steps[1:]
        repository = self.folder / owner / f"{name}.git"
        if not repository.is_dir():
            return 404, _message("Not Found")
        if method == "GET" and not rest:
            return 200, {"full_name": f"{owner}/{name}", "default_branch": _head(repository)}
        if rest == ["pulls"] and method == "GET":
            return 200, self._find(owner, name, parse_qs(parts.query))
        if rest == ["pulls"] and method == "POST":
            return self._open(owner, name, repository, body)
        if rest[:1] == ["contents"] and method == "GET" and len(rest) > 1:
            return self._content(repository, unquote("/".join(rest[1:])), parse_qs(parts.query).get("ref", ["HEAD"])[0])
        if len(rest) >= 2 and rest[0] in ("pulls", "issues") and rest[1].isdigit():
            return self._one(owner, name, int(rest[1]), method, [rest[0], *rest[2:]], body)
        return 404, _message("Not Found")

    def _one(self, owner: str, name: str, number: int, method: str, rest: list[str], body: bytes) -> tuple[int, Any]:
        """Answer a request about one pull request."""
        pulls = self._find(owner, name, {"state": ["all"]})
        pull = next((each for each in pulls if each["number"] == number), None)
        if pull is None:
            return 404, _message("Not Found")
        match method, rest:
            case "GET", ["pulls"]:
                return 200, pull
            case "PATCH", ["pulls"]:
                wanted = json.loads(body)
                if wanted.get("state") not in (None, "open", "closed"):
                    return 422, _message("Validation Failed")
                pull.update({field: wanted[field] for field in ("title", "body", "state") if field in wanted})
                return 200, pull
            case "GET", ["pulls", "files"]:
                return 200, self.files.get(number, [])
            case "GET", ["issues", "comments"]:
                return 200, self.comments.get(number, [])
            case "PUT", ["issues", "labels"]:
                pull["labels"] = [{"name": each} for each in json.loads(body)["labels"]]
                return 200, pull["labels"]
        return 404, _message("Not Found")

    def _content(self, repository: Path, path: str, ref: str) -> tuple[int, Any]:
        command = ["git", "cat-file", "blob", f"{ref}:{path}"]
        told = subprocess.run(command, cwd=repository, check=False, capture_output=True, timeout=60)
        if told.returncode:
            return 404, _message("Not Found")
        content = base64.encodebytes(told.stdout).decode()
        return 200, {"type": "file", "encoding": "base64", "path": path, "size": len(told.stdout), "content": content}

    def _find(self, owner: str, name: str, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        state, head, base = (query.get(each, [None])[0] for each in ("state", "head", "base"))
        return [
            pull
            for pull in self.pulls
            if pull["base"]["repo"]["full_name"] == f"{owner}/{name}"
            and state in (None, "all", pull["state"])
            and head in (None, pull["head"]["label"])
            and base in (None, pull["base"]["ref"])
        ]

    def _open(self, owner: str, name: str, repository: Path, body: bytes) -> tuple[int, Any]:
        try:
            wanted = json.loads(body)
        except ValueError:
            return 400, _message("Problems parsing JSON")
        missing = [field for field in ("title", "head", "base") if not wanted.get(field)]
        if missing:
            return 422, _invalid(f"missing_field: {missing[0]}")
        for field in ("base", "head"):
            if not _has_branch(repository, wanted[field]):
                return 422, _message(
                    "Validation Failed", [{"resource": "PullRequest", "field": field, "code": "invalid"}]
                )
        label = f"{owner}:{wanted['head']}"
        with self.lock:
            if self._find(owner, name, {"state": ["open"], "head": [label], "base": [wanted["base"]]}):
                return 422, _invalid(f"A pull request already exists for {label}.")
            number = len(self.pulls) + 1
            pull = {
                "number": number,
                "state": "open",
                "draft": bool(wanted.get("draft")),
                "title": wanted["title"],
                "body": wanted.get("body"),
                "html_url": f"https://forge.example/{owner}/{name}/pull/{number}",
                "head": {"ref": wanted["head"], "label": label},
                "base": {"ref": wanted["base"], "repo": {"full_name": f"{owner}/{name}"}},
            }
            self.pulls.append(pull)
        return 201, pull


def _message(text: str, errors: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"message": text, "documentation_url": _DOCS, **({} if errors is None else {"errors": errors})}


def _invalid(text: str) -> dict[str, Any]:
    return _message("Validation Failed", [{"resource": "PullRequest", "code": "custom", "message": text}])


def _has_branch(repository: Path, name: str) -> bool:
    command = ["git", "rev-parse", "--verify", "--quiet", f"refs/heads/{name}"]
    return not subprocess.run(command, cwd=repository, check=False, capture_output=True, timeout=60).returncode


def _head(repository: Path) -> str:
    command = ["git", "symbolic-ref", "--short", "HEAD"]
    told = subprocess.run(command, cwd=repository, check=True, capture_output=True, timeout=60)
    return told.stdout.decode().strip()
