"""Which tenant a credential names. Pure: it reads the credential and believes nothing in it.

Every credential names its tenant, so that a request finds the tenant whose keys and secrets then decide whether the
credential is valid. A false name leads to a tenant that refuses it.

| credential | default tenant | tenant `acme` |
|---|---|---|
| API key | `hf_<secret>` | `hf_acme.<secret>` |
| link to a thread | `hfl_<thread>.<expires>.<mac>` | `hfl_<thread>.acme~<expires>.<mac>` |
| login of a browser | `hfs_<secret>` | `hfs_acme.<secret>` |
| code of a link to log in | `hfo_<secret>` | `hfo_acme.<secret>` |
| link of a share | `hfv_<secret>` | `hfv_acme.<secret>` |
| token | a JWT | a JWT with the claim `ten` |
"""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import Final

from holdfast.api.access.tenants import DEFAULT_TENANT, TENANT_NAME

KEY_PREFIX: Final = "hf_"
LINK_PREFIX: Final = "hfl_"
LOGIN_PREFIX: Final = "hfs_"
CODE_PREFIX: Final = "hfo_"
SHARE_PREFIX: Final = "hfv_"
_KEYS: Final = (KEY_PREFIX, LOGIN_PREFIX, CODE_PREFIX, SHARE_PREFIX)
_KEY: Final = re.compile(rf"(?:{'|'.join(_KEYS)})({TENANT_NAME})\.[A-Za-z0-9_-]+")
_LINK: Final = re.compile(rf"{LINK_PREFIX}[^.]+\.({TENANT_NAME})~[0-9a-f]+\.[A-Za-z0-9_-]+")
_NAME: Final = re.compile(TENANT_NAME)
_MOST: Final = 4096
"""Characters of a credential. Longer ones are of no tenant but the default one, which refuses them."""


def key_prefix(tenant: str) -> str:
    """How the API keys of a tenant begin."""
    return KEY_PREFIX + _mark(tenant)


def login_prefix(tenant: str) -> str:
    """How the logins of browsers begin."""
    return LOGIN_PREFIX + _mark(tenant)


def code_prefix(tenant: str) -> str:
    """How the codes of links begin that log a browser in."""
    return CODE_PREFIX + _mark(tenant)


def share_prefix(tenant: str) -> str:
    """How the secrets of shared threads begin."""
    return SHARE_PREFIX + _mark(tenant)


def _mark(tenant: str) -> str:
    return "" if tenant == DEFAULT_TENANT else f"{tenant}."


def link_mark(tenant: str) -> str:
    """What the key of a link to a thread of this tenant begins with."""
    return "" if tenant == DEFAULT_TENANT else f"{tenant}~"


@functools.lru_cache(maxsize=4096)
def tenant_named(credential: str | None) -> str:
    """Returns the tenant that a credential names, which may not exist. The default one if it names none."""
    if credential is None or len(credential) > _MOST:
        return DEFAULT_TENANT
    if credential.startswith(_KEYS):
        match = _KEY.fullmatch(credential)
        return match[1] if match is not None else DEFAULT_TENANT
    if credential.startswith(LINK_PREFIX):
        match = _LINK.fullmatch(credential)
        return match[1] if match is not None else DEFAULT_TENANT
    return _claimed(credential)


def _claimed(token: str) -> str:
    """The tenant in the payload of a token: a JWT, or the token of a wake, whose payload comes first."""
    parts = token.split(".")
    if len(parts) not in (2, 3):
        return DEFAULT_TENANT
    payload = parts[len(parts) - 2]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        name = claims.get("ten", DEFAULT_TENANT)
    except (ValueError, AttributeError, RecursionError):
        return DEFAULT_TENANT
    return name if isinstance(name, str) and _NAME.fullmatch(name) else DEFAULT_TENANT
