"""OpenID Connect: a person logs in at an identity provider (authorization code flow with PKCE).

What the browser carries between the two requests, the state, is signed and bound to it by a cookie. The answer of the
identity provider is believed only after its signature, issuer, audience, times and nonce were checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from holdfast.api.errors import Forbidden, Unauthorized, Unavailable
from holdfast.egress.models.upstream import proxy_for

if TYPE_CHECKING:
    import httpx

    from holdfast.server.config import Settings

STATE_COOKIE: Final = "holdfast_oidc"
SECURE_STATE_COOKIE: Final = f"__Host-{STATE_COOKIE}"
"""Over https."""
STATE_SECONDS: Final = 600
_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
"""Asymmetric ones only: with HS256, whoever knows the client secret could sign, and `none` is no signature."""
_SECONDS: Final = 10.0
_MOST_BYTES: Final = 512 * 1024
_KEPT_MS: Final = 3600 * 1000
"""How long the provider's addresses and keys are kept."""
_LEEWAY: Final = 60
_HINT: Final = "start again at /login"


@dataclass(frozen=True, slots=True)
class OidcSettings:
    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    claim: str = "email"
    """The claim that is the name of a member. An `email` counts only if the provider has verified it."""
    name: str = "single sign-on"


@dataclass(frozen=True, slots=True)
class Started:
    """A login that goes on at the identity provider."""

    location: str
    cookie: str = field(repr=False)
    """The state, for a cookie of this browser."""


class Oidc:
    """One identity provider. `key` signs states, and `environment` names the proxies of this machine."""

    def __init__(
        self, settings: OidcSettings, key: bytes, clock: Callable[[], int], environment: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self.settings = settings
        self._key = key
        self._clock = clock
        self._configuration: dict[str, Any] = {}
        self._keys: dict[object, Any] = {}
        self._fetched_at = 0

    async def start(self, redirect_uri: str, tenant: str) -> Started:
        """Begin a login of a member of this tenant. Raises `Unavailable` if the provider does not answer."""
        configuration = await self._discovered()
        verifier = secrets.token_urlsafe(48)
        state = {
            "state": secrets.token_urlsafe(24),
            "nonce": secrets.token_urlsafe(24),
            "verifier": verifier,
            "redirect": redirect_uri,
            "tenant": tenant,
            "exp": self._clock() // 1000 + STATE_SECONDS,
        }
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email profile",
            "state": state["state"],
            "nonce": state["nonce"],
            "code_challenge": _encode(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        endpoint = configuration["authorization_endpoint"]
        joint = "&" if urlsplit(endpoint).query else "?"
        return Started(f"{endpoint}{joint}{urlencode(query)}", self._sealed(state))

    async def finish(self, query: Mapping[str, str], cookie: str | None) -> tuple[str, str]:
        """Returns the tenant and the name of the member who has logged in. Raises `Unauthorized` or `Forbidden`."""
        state = self._opened(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), str(state["state"]).encode()):
            raise Unauthorized("this login was not started in this browser", hint=_HINT)
        if "error" in query or not query.get("code"):
            reason = query.get("error_description") or query.get("error") or "it sent no code"
            raise Unauthorized(f"the identity provider refused: {reason[:200]}", hint=_HINT)
        configuration = await self._discovered()
        issuer = query.get("iss")
        if issuer is not None and issuer != configuration["issuer"]:
            raise Unauthorized("this answer is of another identity provider", hint=_HINT)
        token = await self._redeem(configuration, query["code"], state)
        claims = await self._verified(token, str(state["nonce"]))
        return str(state["tenant"]), self._name_in(claims)

    def _name_in(self, claims: Mapping[str, Any]) -> str:
        claim = self.settings.claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise Forbidden(f"the identity provider tells no {claim}", hint="set oidc_claim to a claim that it tells")
        if claim == "email" and claims.get("email_verified") is not True:
            raise Forbidden(f"the identity provider has not verified {name}", hint="verify the address there")
        return name

    async def _redeem(self, configuration: Mapping[str, Any], code: str, state: Mapping[str, Any]) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": str(state["redirect"]),
            "client_id": self.settings.client_id,
            "code_verifier": str(state["verifier"]),
        }
        if self.settings.client_secret is not None:
            form["client_secret"] = self.settings.client_secret
        status, document = await self._ask("POST", configuration["token_endpoint"], form)
        token = document.get("id_token")
        if status != 200 or not isinstance(token, str):
            raise Unauthorized("the identity provider did not take its code back", hint=_HINT)
        return token

    async def _verified(self, token: str, nonce: str) -> dict[str, Any]:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in _ALGORITHMS:
                raise jwt.InvalidAlgorithmError(f"the algorithm {header.get('alg')!r} is not accepted")
            key = await self._key_of(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=self.settings.client_id,
                issuer=self._configuration["issuer"],
                leeway=_LEEWAY,
                options={"require": ["iss", "aud", "exp", "iat", "sub"], "verify_exp": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, KeyError, ValueError, TypeError) as error:
            raise Unauthorized(f"the token of the identity provider is not valid: {error}", hint=_HINT) from None
        now = self._clock() // 1000
        if now > int(claims["exp"]) + _LEEWAY or now < int(claims["iat"]) - _LEEWAY:
            raise Unauthorized("the token of the identity provider has expired, or is not valid yet", hint=_HINT)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise Unauthorized("the token of the identity provider is not of this login", hint=_HINT)
        audience = claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self.settings.client_id:
            raise Unauthorized("the token of the identity provider is for another client", hint=_HINT)
        return claims

    async def _key_of(self, id: object) -> Any:
        """Returns the public key of this id. A new one is looked for once: providers change their keys."""
        from jwt import PyJWK

        if id not in self._keys:
            _, document = await self._ask("GET", self._configuration["jwks_uri"])
            found = [each for each in document.get("keys", []) if isinstance(each, dict)]
            signing = [each for each in found if each.get("use", "sig") == "sig" and each.get("kty") != "oct"]
            self._keys = {each.get("kid"): each for each in signing[:100]}
        return PyJWK(self._keys[id]).key

    # --- the provider's addresses ---

    async def _discovered(self) -> dict[str, Any]:
        now = self._clock()
        if self._configuration and now - self._fetched_at < _KEPT_MS:
            return self._configuration
        issuer = self.settings.issuer.rstrip("/")
        status, document = await self._ask("GET", f"{issuer}/.well-known/openid-configuration")
        if status != 200 or str(document.get("issuer", "")).rstrip("/") != issuer:
            raise Unavailable(f"{issuer} is not an identity provider of that name", hint="check oidc_issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if urlsplit(str(document.get(name, ""))).scheme not in ("https", urlsplit(issuer).scheme):
                raise Unavailable(f"{issuer} has no {name} that can be used", hint="check oidc_issuer")
        self._configuration, self._keys, self._fetched_at = document, {}, now
        return document

    async def _ask(self, method: str, url: str, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        import httpx

        try:
            proxy = proxy_for(urlsplit(url).scheme, urlsplit(url).hostname or "", self._environment)
            async with (
                httpx.AsyncClient(timeout=_SECONDS, trust_env=False, proxy=proxy) as client,
                client.stream(method, url, data=form, headers={"accept": "application/json"}) as answer,
            ):
                body = await _bounded(answer)
            document = json.loads(body)
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise Unavailable(f"the identity provider does not answer: {error}", hint="try again in a moment") from None
        return answer.status_code, document if isinstance(document, dict) else {}

    # --- states ---

    def _sealed(self, state: Mapping[str, Any]) -> str:
        payload = _encode(json.dumps(state).encode())
        return f"{payload}.{self._mac(payload)}"

    def _opened(self, cookie: str | None) -> dict[str, Any]:
        payload, _, mac = (cookie or "").partition(".")
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), self._mac(payload).encode()):
            raise Unauthorized("this login was not started in this browser", hint=_HINT)
        state: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if self._clock() // 1000 >= state["exp"]:
            raise Unauthorized("this login took too long", hint=_HINT)
        return state

    def _mac(self, payload: str) -> str:
        return _encode(hmac.digest(self._key, payload.encode("utf-8", "replace"), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def _bounded(answer: httpx.Response) -> bytes:
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _MOST_BYTES:
            raise ValueError("its answer is too large")
    return body


def make_oidc(settings: Settings, key: bytes, clock: Callable[[], int], environment: Mapping[str, str]) -> Oidc | None:
    """The identity provider that the operator has set, if any."""
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    chosen = OidcSettings(
        settings.oidc_issuer,
        settings.oidc_client_id,
        settings.oidc_client_secret,
        settings.oidc_claim,
        settings.oidc_name,
    )
    return Oidc(chosen, key, clock, environment)
