"""Opens and changes pull requests, and reads files, by the REST API of a forge: GitHub, or what speaks the same.

The token is sent to one host only, over https (plain http is for this machine), and redirects are not followed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast.api.errors.repositories import InvalidRepository, RepositoryFailed

_SECONDS: Final = 30.0
_MOST_ANSWER: Final = 8 * 1024 * 1024
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class PullRequest:
    number: int
    url: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Forge:
    api: str
    """The base URL of its API: `https://api.github.com`."""
    owner: str
    repository: str
    token: str = field(repr=False)
    may_reach: Callable[[str], bool] | None = None
    """Whether an address may be connected to. If it is given, failures do not tell what is behind an address."""

    def default_branch(self) -> str:
        return str(self._ask("GET", "")["default_branch"])

    def open_pull_request(self, branch: str, base: str, title: str, body: str, *, draft: bool) -> PullRequest:
        """Open a pull request, or return the one that is open for this branch already."""
        wanted = urlencode({"state": "open", "head": f"{self.owner}:{branch}", "base": base})
        for each in self._ask("GET", f"/pulls?{wanted}"):
            return PullRequest(int(each["number"]), str(each["html_url"]), False)
        document = {"title": title, "head": branch, "base": base, "body": body, "draft": draft}
        made = self._ask("POST", "/pulls", document)
        return PullRequest(int(made["number"]), str(made["html_url"]), True)

    def pull_request(self, number: int) -> Any:
        return self._ask("GET", f"/pulls/{number}")

    def pull_requests(self, state: str, limit: int) -> Any:
        """Returns pull requests as the forge describes them, the newest first."""
        return self._ask("GET", f"/pulls?{urlencode({'state': state, 'per_page': limit})}")

    def update_pull_request(self, number: int, changes: Mapping[str, str]) -> Any:
        """`changes` are its title, body or state."""
        return self._ask("PATCH", f"/pulls/{number}", dict(changes))

    def set_labels(self, number: int, labels: Sequence[str]) -> None:
        self._ask("PUT", f"/issues/{number}/labels", {"labels": list(labels)})

    def changed_files(self, number: int, limit: int) -> Any:
        return self._ask("GET", f"/pulls/{number}/files?{urlencode({'per_page': limit})}")

    def comments(self, number: int, limit: int) -> Any:
        return self._ask("GET", f"/issues/{number}/comments?{urlencode({'per_page': limit})}")

    def file(self, path: str, ref: str | None, most: int) -> bytes:
        """Returns a file of a branch, tag or commit, or its first `most` bytes."""
        query = "" if ref is None else f"?{urlencode({'ref': ref})}"
        found = self._ask("GET", f"/contents/{quote(path)}{query}")
        if not isinstance(found, dict) or found.get("type") != "file" or found.get("encoding") != "base64":
            raise RepositoryFailed(f"{path[:200]!r} is not a file, or is too large", hint="name a file below 1 MB")
        try:
            return base64.b64decode(found["content"])[:most]
        except (LookupError, TypeError, ValueError):
            raise RepositoryFailed(f"the content of {path[:200]!r} cannot be read") from None

    def _ask(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        parts = urlsplit(self.api)
        host = parts.hostname or ""
        if parts.scheme not in ("https", "http") or (parts.scheme == "http" and host not in _LOOPBACK):
            raise InvalidRepository(f"{self.api} is not an https URL", hint="--api https://HOST/api/v3")
        context = ssl.create_default_context() if parts.scheme == "https" else None
        if context is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=_SECONDS)
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "User-Agent": "holdfast",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        body = None if document is None else json.dumps(document).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = f"{parts.path.rstrip('/')}/repos/{quote(self.owner, safe='')}/{quote(self.repository, safe='')}{path}"
        try:
            if self.may_reach is not None:
                connection.sock = _open(host, connection.port, context, self.may_reach)
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = response.read(_MOST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            if self.may_reach is not None:
                raise RepositoryFailed(f"cannot reach {host}", hint="it has to be a host of the internet") from None
            raise RepositoryFailed(f"cannot reach {host}: {error}", hint="check --api and the network") from None
        finally:
            connection.close()
        if response.status not in (200, 201):
            raise self._refused(response.status, answer, host)
        try:
            return json.loads(answer)
        except ValueError:
            raise RepositoryFailed(f"{host} answered with something that is not JSON") from None

    def _refused(self, status: int, answer: bytes, host: str) -> RepositoryFailed:
        why = ""
        with contextlib.suppress(ValueError, AttributeError, TypeError):  # then only the status is known
            told = json.loads(answer)
            why = "; ".join(
                [str(told.get("message", "")), *(str(each.get("message", "")) for each in told.get("errors", ()))]
            ).strip("; ")
        shown = "".join(each if each.isprintable() else "�" for each in why)[:500]
        hints = {
            401: "give a valid token in GH_TOKEN, or let git know one: git credential",
            403: "the token may not do this: it needs to write pull requests",
            404: "check that the repository exists and that the token may see it",
        }
        about = f"{host} refused the request for {self.owner}/{self.repository}: {status}"
        return RepositoryFailed(f"{about}{f' {shown}' if shown else ''}", hint=hints.get(status))


def _open(host: str, port: int, context: ssl.SSLContext | None, may_reach: Callable[[str], bool]) -> socket.socket:
    """Returns a socket that is connected to an address that was checked. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except UnicodeError:
        raise OSError("this is no name of a host") from None
    addresses = [str(address[0]) for *_, address in found]
    if not addresses or not all(may_reach(each) for each in addresses):
        raise OSError("this address is not reached from here")
    failed = OSError()
    for address in addresses[:4]:
        try:
            opened = socket.create_connection((address, port), timeout=_SECONDS)
        except OSError as error:
            failed = error
            continue
        try:
            return opened if context is None else context.wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise
    raise failed


def place_of(url: str) -> tuple[str, str, str]:
    """Returns the host, the owner and the name of a repository by its URL. Raises `InvalidRepository`."""
    if "://" in url:
        parts = urlsplit(url)
        host, path = parts.hostname or "", parts.path
    else:
        host, _, path = url.rpartition("@")[2].partition(":")
        if not path:
            host, path = "", url
    owner, _, name = path.strip("/").removesuffix(".git").rpartition("/")
    owner = owner.rpartition("/")[2] if not host else owner
    if not owner or not name:
        raise InvalidRepository(f"{url[:80]!r} does not name an owner and a repository")
    return host, owner, name


def api_of(host: str) -> str:
    """Returns the base URL of the API of a host. Raises `InvalidRepository` without a host: a folder has none."""
    if not host:
        raise InvalidRepository(
            "this remote is a folder on this machine, which has no pull requests",
            hint="push to it with holdfast push, name a remote of a forge (--remote NAME), or its API (--api URL)",
        )
    return "https://api.github.com" if host == "github.com" else f"https://{host}/api/v3"
