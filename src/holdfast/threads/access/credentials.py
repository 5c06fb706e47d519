"""Credentials: API keys for people and services, and tokens for one thread and one scope for everything in a box.

The server stores digests of keys. Tokens are HS256 JWTs, so the server stores nothing about them. A token names the key
or the member that it was issued by, and ends with them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.api.access.keys import Caller
from holdfast.api.access.keys import Scope as Scope
from holdfast.api.access.tenants import DEFAULT_TENANT, TenantRole
from holdfast.api.errors import Forbidden, InvalidRequest, Unauthorized
from holdfast.api.ids import new_id, now_ms
from holdfast.api.limits import MAX_TOKEN_SECONDS
from holdfast.threads.access.open_work import OpenWork
from holdfast.threads.access.tenant_names import KEY_PREFIX, LINK_PREFIX, LOGIN_PREFIX, key_prefix, link_mark
from holdfast.threads.protocol.surface import THREADS

if TYPE_CHECKING:
    from holdfast.threads.access.logins import LoginStore
    from holdfast.threads.access.members import MemberStore

AUDIT: Final = "holdfast/audit"
"""The stream with the audit log of a tenant, which only the server writes and only owners read."""
DEFAULT_USER: Final = "default"
"""The user where no credential names one: the server requires none, or it is the key of the server's own home."""
_MAC_BYTES: Final = 16
_ISSUER: Final = "holdfast"
_CACHED: Final = 4096
_KEY_RECHECK_MS: Final = 1000
"""How soon a key that another process revoked stops working."""
_MAX_RENEWED_SECONDS: Final = 7 * 24 * 3600
"""How long renewals can extend a token: longer than any run."""
RUNNER_SECONDS: Final = 3600
MODEL_SECONDS: Final = 4 * 24 * 3600
"""Longer than any run, because an agent cannot renew its token. The token ends with its run."""


class LoginCookie(str):
    """The credential of a login as it came in its cookie, from a page of ours. The same text in a header or a URL is
    refused: a program that a browser sent the cookie to, because it listens on the same host, cannot use it there.
    """

    __slots__ = ()


class RunScope(StrEnum):
    """What the token of a run is for. It works only at the guest API, from the run's own box."""

    RUNNER = "runner"
    """Append to its thread in its epoch, and report that it is alive."""
    MODEL = "model"
    """Call the model of its run while the run is alive."""
    DELEGATE = "delegate"
    """Delegate tasks of its thread, and use the tools of its session, while the run is alive. Its options say which."""
    HUB = "hub"
    """Be the runner of its session at the hub. It names no run."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who issued a credential that they can give away. It ends with their right to issue it."""

    key: str | None = None
    member: str | None = None
    """Counts if there is no key: they were logged in by an identity provider."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a credential allows. An API key allows everything in its tenant; a token allows one thread."""

    tenant: str
    thread: str | None = None
    scope: Scope = Scope.WRITE
    first_issued: int = 0
    """In seconds: when the first token of a chain of renewals was issued."""
    user: str = DEFAULT_USER
    """Who uses the credential. Until there are accounts of people, this is the name of the API key, so that a key
    which replaces another under the same name is the same user."""
    key: str | None = None
    """The id of the API key."""
    role: TenantRole = TenantRole.OWNER
    """What the caller may do in the tenant. Of a token, `thread` and `scope` say it."""
    member: str | None = None
    """The member whose key or login it is."""
    login: str | None = None
    """The id of the login, if the credential is the cookie of a browser."""
    issuer: Issuer | None = None
    """Of a token: who issued it. None if the server requires no credential, for the key of its own home, and for tokens
    of earlier versions."""

    @property
    def as_issuer(self) -> Issuer | None:
        """Who issues what this caller asks for."""
        return None if self.key is None and self.member is None else Issuer(self.key, self.member)

    @property
    def caller(self) -> Caller:
        return Caller(tenant=self.tenant, user=self.user, key=self.key, role=self.role.value)

    def covers(self, earlier: Grant) -> bool:
        """Whether a credential still allows what it allowed earlier."""
        return self.role.includes(earlier.role) and self.scope in (earlier.scope, Scope.WRITE)

    def check_administer(self) -> None:
        if self.thread is not None:
            raise Forbidden("a thread token cannot do this: use an API key")

    def check_role(self, needed: TenantRole) -> None:
        """Raises `Forbidden` if the role of an API key does not include `needed`."""
        if not self.role.includes(needed):
            raise Forbidden(
                f"this needs the role {needed.value}, and you are a {self.role.value}",
                hint="ask an owner of your tenant: holdfast member role NAME ROLE",
            )

    def check_thread(self, id: str, scope: Scope) -> None:
        if self.thread is None:
            return
        if self.thread != id:
            raise Forbidden(f"this token is for thread {self.thread}, not for {id}")
        if scope is Scope.WRITE and self.scope is not Scope.WRITE:
            raise Forbidden(f"this token may only read thread {id}", hint="request a token with scope write")

    def check_stream(self, path: str, method: str) -> None:
        if path == AUDIT:
            self.check_administer()
            self.check_role(TenantRole.OWNER)
            if method not in ("GET", "HEAD"):
                raise Forbidden("only the server writes the audit log")
        if self.thread is None:
            if self.role is TenantRole.VIEWER and method not in ("GET", "HEAD"):
                self.check_role(TenantRole.MEMBER)
            return
        if not path.startswith(THREADS):
            raise Forbidden(f"this token is for thread {self.thread}, not for stream {path}")
        self.check_thread(path[len(THREADS) :], Scope.READ if method in ("GET", "HEAD") else Scope.WRITE)
        if method in ("PUT", "DELETE"):
            raise Forbidden("a thread token can neither create nor delete streams: use an API key")


@dataclass(frozen=True, slots=True)
class RunGrant:
    """What the token of a run allows, in the box of that run."""

    tenant: str
    thread: str
    run: str
    """Empty for what stays in a session between its runs: the run that is alive is meant."""
    epoch: int
    box: str
    scope: RunScope
    model: str = ""
    """Name and model that the run was launched with. Only for scope `model`."""
    agent: str = ""
    """The prefix of its agent's entry types. Only for scope `runner`."""
    by_url: bool = False
    """Whether its box has a URL of the guest API. Other tokens are valid only on the connections of their box."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    created_at: int
    revoked_at: int | None = None
    role: TenantRole = TenantRole.OWNER
    """What it may do at most."""
    member: str | None = None
    """Whose key it is. None for keys of services."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    token: str
    thread: str
    scope: Scope
    expires_at: int
    """UTC milliseconds."""


@dataclass(frozen=True, slots=True)
class IssuedLink:
    key: str
    thread: str
    expires_at: int
    """UTC milliseconds."""


@dataclass(frozen=True, slots=True)
class IssuedRunToken:
    token: str = field(repr=False)
    expires_at: int = 0
    """UTC milliseconds."""


class KeyStore(Protocol):
    """The contract of a store of API keys. It holds digests, never a key itself."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Returns the key with this digest, including revoked ones. The role of a member's key is at most that of the
        member, as it is now; the key of a member who was removed is revoked.
        """
        ...

    async def get_key(self, id: str) -> ApiKey | None:
        """Like `find_key`, by the id of the key."""
        ...

    async def list_keys(self) -> list[ApiKey]:
        """Returns all keys, including revoked ones, oldest first."""
        ...

    async def add_key(self, key: ApiKey, digest: bytes) -> None: ...

    async def revoke_key(self, id: str, at: int) -> bool:
        """Revoke a key. Returns False if there is no such key or it was already revoked."""
        ...


class SecretStore(Protocol):
    """The contract of a store for the root secret, from which all other secrets of a server are derived.

    All servers on one storage share it, so tokens, seals, webhook signatures and sealed keys of one work at all.
    """

    async def root(self) -> bytes:
        """Returns the 32-byte root secret. Creates it on first use."""
        ...


def digest_key(key: str) -> bytes:
    """Returns the SHA-256 digest of a key. A slow hash is not needed, because keys have 256 bits of randomness."""
    return hashlib.sha256(key.encode()).digest()


def new_key(tenant: str = DEFAULT_TENANT) -> str:
    return key_prefix(tenant) + secrets.token_urlsafe(32)


def derive(secret: bytes, purpose: str) -> bytes:
    """Returns a key for one purpose, so that no two purposes share a key."""
    return hmac.new(secret, f"holdfast {purpose}".encode(), hashlib.sha256).digest()


class Access:
    """Turns credentials into grants, and issues new credentials. `required=False` grants everything to any client."""

    def __init__(
        self,
        keys: KeyStore,
        secret: bytes,
        *,
        tenant: str = DEFAULT_TENANT,
        required: bool = True,
        session_key: str | None = None,
        clock: Callable[[], int] = now_ms,
        logins: LoginStore | None = None,
        members: MemberStore | None = None,
    ) -> None:
        self._logins = logins
        self._members = members
        self._keys = keys
        self._secret = derive(secret, "thread tokens")
        self._link_secret = derive(secret, "links to threads")
        self._run_secret = derive(secret, "run tokens")
        """A separate secret, so that the token of a run is valid only at the guest API."""
        self._tenant = tenant
        self._session_digest = digest_key(session_key) if session_key else b""
        """Digest of a key that is valid only while this server runs."""
        self.required = required
        self._clock = clock
        self._everything = Grant(tenant)
        self._known: dict[str, tuple[Grant, int]] = {}
        """Grants by credential, each with the time (ms) until which it is cached."""
        self._known_runs: dict[str, tuple[RunGrant, int]] = {}
        self._changes = 0
        """How often `review` was called."""
        self._open = OpenWork()
        self.on_review: list[Callable[[], Awaitable[None]]] = []
        """Called by `review`, for credentials of other kinds that depend on ours."""

    @property
    def everything(self) -> Grant:
        """What the operator of the server may do."""
        return self._everything

    async def grant(self, credential: str | None) -> Grant:
        """Returns what a credential allows. Raises `Unauthorized` if it is not valid."""
        while (grant := self.grant_known(credential)) is None:
            assert credential is not None
            changes = self._changes
            grant, until = await self._ask_store(credential)
            if changes == self._changes:  # otherwise the answer can be from before a revocation
                return self._remember(credential, grant, until)
        return grant

    async def _ask_store(self, credential: str) -> tuple[Grant, int]:
        """Returns what a credential allows, and until when that need not be asked again. Raises `Unauthorized`."""
        if credential.startswith(LOGIN_PREFIX):
            return await self._check_login(credential)
        if not credential.startswith(KEY_PREFIX):
            grant, expires_at = self._check_token(credential)
            return await self._as_issued(grant), min(expires_at, self._clock() + _KEY_RECHECK_MS)
        key = await self._check_key(credential)
        grant = Grant(self._tenant, user=key.member or key.name, key=key.id, role=key.role, member=key.member)
        return grant, self._clock() + _KEY_RECHECK_MS

    @contextlib.asynccontextmanager
    async def while_granted(self, credential: str | None, grant: Grant) -> AsyncIterator[None]:
        """Run a block that stays open for long. It ends with `Unauthorized` when the credential is revoked, or allows
        less than this grant.

        Whoever takes a right away changes the store first, and then calls `review`. So a block that is counted first
        and checked afterwards is found by one of the two.
        """
        async with self._open.entered(lambda: self._covers(credential, grant)):
            yield

    def watched(
        self, credential: str | None, grant: Grant, on_end: Callable[[], None]
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """As `while_granted`, for what other tasks do: `on_end` is called once, and has to end it."""
        return self._open.watched(lambda: self._covers(credential, grant), on_end)

    async def _covers(self, credential: str | None, earlier: Grant) -> bool:
        try:
            return (await self.grant(credential)).covers(earlier)
        except Unauthorized:
            return False

    def grant_known(self, credential: str | None) -> Grant | None:
        """Like `grant`, without asking the store. Returns None if the store must be asked."""
        if not self.required:
            return self._everything
        if credential is None:
            raise Unauthorized("this request needs an API key or a thread token", hint="send Authorization: Bearer …")
        if credential.startswith(LOGIN_PREFIX) and not isinstance(credential, LoginCookie):
            raise Unauthorized("a login counts only in its cookie", hint="send an API key instead")
        now = self._clock()
        known = self._known.get(credential)
        if known is not None and now < known[1]:
            return known[0]
        if credential.startswith(LOGIN_PREFIX):
            return None
        if not credential.startswith(KEY_PREFIX):
            is_link = credential.startswith(LINK_PREFIX)
            grant, until = self._check_link(credential) if is_link else self._check_token(credential)
            return self._remember(credential, grant, until) if grant.issuer is None else None
        if hmac.compare_digest(digest_key(credential), self._session_digest):
            return self._remember(credential, self._everything, now + _KEY_RECHECK_MS)
        return None

    def _remember(self, credential: str, grant: Grant, until: int) -> Grant:
        if len(self._known) >= _CACHED:
            self._known.clear()
        self._known[credential] = (grant, until)
        return grant

    async def _check_key(self, key: str) -> ApiKey:
        """Raises `Unauthorized` if the store has no such key or it was revoked."""
        found = await self._keys.find_key(digest_key(key))
        if found is None:
            raise Unauthorized("this server does not know this API key", hint="create one: holdfast key create NAME")
        if found.revoked_at is not None:
            raise Unauthorized(
                f"the API key {found.name!r} ({found.id}) was revoked", hint="create one: holdfast key create NAME"
            )
        return found

    async def role_of(self, issuer: Issuer, since: int) -> TenantRole | None:
        """Returns the role that an issuer has now. None if their key was revoked, or they are not the member that they
        were at `since`, in seconds."""
        if issuer.key is not None:
            key = await self._keys.get_key(issuer.key)
            return None if key is None or key.revoked_at is not None else key.role
        member = None if self._members is None else await self._members.find(issuer.member or "")
        return None if member is None or member.created_at // 1000 > since else member.role

    async def _as_issued(self, grant: Grant) -> Grant:
        """Returns what is left of the grant of a token: not more than its issuer may do now. Raises `Unauthorized`."""
        role = None if grant.issuer is None else await self.role_of(grant.issuer, grant.first_issued)
        if role is None:
            raise Unauthorized("whoever issued this token has lost the right to it", hint="request a new one")
        return grant if role.includes(TenantRole.MEMBER) else replace(grant, scope=Scope.READ)

    async def _check_login(self, credential: str) -> tuple[Grant, int]:
        """Check the cookie of a browser. Raises `Unauthorized`."""
        found = None if self._logins is None else await self._logins.find(digest_key(credential))
        if found is None or self._clock() >= found.expires_at:
            raise Unauthorized("this login has ended", hint="log in again: holdfast login prints a link")
        grant = Grant(
            self._tenant, user=found.user, key=found.key, role=found.role, member=found.member, login=found.id
        )
        return grant, min(self._clock() + _KEY_RECHECK_MS, found.expires_at)

    # --- links: credentials for the web page of a thread ---

    def issue_link(self, thread: str, ttl_seconds: int) -> IssuedLink:
        """Returns a key that can read one thread, short enough to be part of a URL."""
        if not 1 <= ttl_seconds <= MAX_TOKEN_SECONDS:
            raise InvalidRequest(f"a link must live 1 to {MAX_TOKEN_SECONDS} seconds, not {ttl_seconds}")
        expires = self._clock() // 1000 + ttl_seconds
        key = f"{link_mark(self._tenant)}{expires:x}.{self._link_mac(thread, expires)}"
        return IssuedLink(key, thread, expires * 1000)

    def _link_mac(self, thread: str, expires: int) -> str:
        told = f"{self._tenant}\n{thread}\n{expires}".encode()
        mac = hmac.new(self._link_secret, told, hashlib.sha256).digest()[:_MAC_BYTES]
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")

    def _check_link(self, credential: str) -> tuple[Grant, int]:
        """Check a link credential, `hfl_<thread>.<expires>.<mac>`. The page builds it from the thread and the key in
        its URL.
        """
        thread, expires, mac = (*credential.removeprefix(LINK_PREFIX).rsplit(".", 2), "", "")[:3]
        expires = expires.removeprefix(link_mark(self._tenant))
        try:
            seconds = int(expires, 16) if len(expires) <= 12 else 0
        except ValueError:
            seconds = 0
        if not hmac.compare_digest(mac.encode(), self._link_mac(thread, seconds).encode()):
            raise Unauthorized("this link is not valid on this server", hint="get a new one: holdfast attach THREAD")
        if self._clock() >= seconds * 1000:
            raise Unauthorized("this link has expired", hint="get a new one: holdfast attach THREAD")
        return Grant(self._tenant, thread, Scope.READ, role=TenantRole.VIEWER), seconds * 1000

    def _check_token(self, token: str) -> tuple[Grant, int]:
        import jwt  # here and below: it loads much that only asymmetric keys need, and no start should wait for that

        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=["HS256"],
                issuer=_ISSUER,
                options={"require": ["exp", "iat", "sub"], "verify_exp": False, "verify_iat": False},
            )
            expires_at = int(claims["exp"]) * 1000
            if claims["ten"] != self._tenant:
                raise ValueError("a token of another tenant")
            key, member = claims.get("key"), claims.get("member")
            issuer = None if key is None and member is None else Issuer(key, member)
            grant = Grant(self._tenant, str(claims["sub"]), Scope(claims["scope"]), int(claims["first"]), issuer=issuer)
        except (jwt.InvalidTokenError, KeyError, ValueError, TypeError):
            raise Unauthorized("this token is not valid on this server") from None
        if self._clock() >= expires_at:
            raise Unauthorized("this token has expired", hint="request a new one; renew tokens before they expire")
        return grant, expires_at

    def issue(
        self,
        thread: str,
        scope: Scope,
        ttl_seconds: int,
        *,
        first_issued: int | None = None,
        issuer: Issuer | None = None,
    ) -> IssuedToken:
        if not 1 <= ttl_seconds <= MAX_TOKEN_SECONDS:
            raise InvalidRequest(f"a token must live 1 to {MAX_TOKEN_SECONDS} seconds, not {ttl_seconds}")
        import jwt

        now = self._clock() // 1000
        expires = now + ttl_seconds
        claims: dict[str, str | int | None] = {
            "iss": _ISSUER,
            "sub": thread,
            "ten": self._tenant,
            "scope": scope.value,
            "iat": now,
            "exp": expires,
            "first": now if first_issued is None else first_issued,
            "jti": new_id("j"),
        }
        if issuer is not None:
            claims |= {"key": issuer.key, "member": issuer.member}
        return IssuedToken(jwt.encode(claims, self._secret, "HS256"), thread, scope, expires * 1000)

    async def renew(self, token: str | None) -> IssuedToken:
        """Returns a new token with the same grant and lifetime. Raises `Forbidden` once the chain of renewals is a week
        old.
        """
        grant = await self.grant(token)
        if grant.thread is None or token is None or token.startswith(LINK_PREFIX):
            raise InvalidRequest("only a thread token can be renewed")
        import jwt

        claims = jwt.decode(token, options={"verify_signature": False})
        if self._clock() // 1000 - grant.first_issued > _MAX_RENEWED_SECONDS:
            raise Forbidden("this token has been renewed for a week: request a new one with an API key")
        return self.issue(
            grant.thread,
            grant.scope,
            int(claims["exp"]) - int(claims["iat"]),
            first_issued=grant.first_issued,
            issuer=grant.issuer,
        )

    # --- runs ---

    def issue_run(
        self,
        thread: str,
        run: str,
        epoch: int,
        box: str,
        scope: RunScope,
        *,
        model: str = "",
        agent: str = "",
        by_url: bool = False,
    ) -> IssuedRunToken:
        """Issue a token for one run, in one epoch and one box. With `by_url`, the box connects to the server itself."""
        import jwt

        now = self._clock() // 1000
        expires = now + (RUNNER_SECONDS if scope is RunScope.RUNNER else MODEL_SECONDS)
        claims = {
            "iss": _ISSUER,
            "sub": thread,
            "ten": self._tenant,
            "run": run,
            "epoch": epoch,
            "box": box,
            "scope": scope.value,
            "model": model,
            "agent": agent,
            "url": by_url,
            "iat": now,
            "exp": expires,
        }
        return IssuedRunToken(jwt.encode(claims, self._run_secret, "HS256"), expires * 1000)

    def grant_run(self, credential: str | None, box: str | None) -> RunGrant:
        """Returns what a run's token allows to a caller in that box. Does not check whether the run is alive.

        None means that the connection does not tell the box: then only tokens that were issued for that are valid.
        """
        grant, expires_at = self._run_token(credential, box)
        if self._clock() >= expires_at:
            raise Unauthorized("this token has expired", hint="renew it")
        return grant

    def renew_run(self, credential: str | None, box: str | None) -> IssuedRunToken:
        """Returns a new token like this one, even if it has expired. The caller must know that the run is alive."""
        grant, _ = self._run_token(credential, box)
        return self.issue_run(
            grant.thread,
            grant.run,
            grant.epoch,
            grant.box,
            grant.scope,
            model=grant.model,
            agent=grant.agent,
            by_url=grant.by_url,
        )

    def _run_token(self, credential: str | None, box: str | None) -> tuple[RunGrant, int]:
        if credential is None:
            raise Unauthorized("this request needs the token of a run", hint="send Authorization: Bearer …")
        known = self._known_runs.get(credential)
        if known is None:
            known = self._check_run_token(credential)
            if len(self._known_runs) >= _CACHED:
                self._known_runs.clear()
            self._known_runs[credential] = known
        if box is None:
            if not known[0].by_url:
                raise Forbidden("this token is valid only on the connections of its own box")
        elif not hmac.compare_digest(known[0].box.encode(), box.encode()):
            raise Forbidden("this token is for a run in another box")
        return known

    def _check_run_token(self, token: str) -> tuple[RunGrant, int]:
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._run_secret,
                algorithms=["HS256"],
                issuer=_ISSUER,
                options={"require": ["exp", "iat", "sub"], "verify_exp": False, "verify_iat": False},
            )
            grant = RunGrant(
                str(claims["ten"]),
                str(claims["sub"]),
                str(claims["run"]),
                int(claims["epoch"]),
                str(claims["box"]),
                RunScope(claims["scope"]),
                str(claims["model"]),
                str(claims.get("agent", "")),  # missing in tokens of older servers, which may only end their run
                claims.get("url") is True,
            )
            return grant, int(claims["exp"]) * 1000
        except (jwt.InvalidTokenError, KeyError, ValueError, TypeError):
            raise Unauthorized("this token is not valid on this server") from None

    # --- keys ---

    async def create_key(
        self, name: str, role: TenantRole = TenantRole.OWNER, member: str | None = None
    ) -> tuple[ApiKey, str]:
        secret = new_key(self._tenant)
        key = ApiKey(new_id("k"), name, self._clock(), role=role, member=member)
        await self._keys.add_key(key, digest_key(secret))
        return key, secret

    async def list_keys(self) -> list[ApiKey]:
        return await self._keys.list_keys()

    async def revoke_key(self, id: str) -> bool:
        revoked = await self._keys.revoke_key(id, self._clock())
        await self.review()
        return revoked

    def now(self) -> int:
        return self._clock()

    async def review(self) -> None:
        """Ask the store again about every credential, and end what is open without a right to it: a key, a login or the
        role of a member has changed."""
        self._changes += 1
        self._known.clear()
        await self._open.review()
        for review in self.on_review:
            await review()
