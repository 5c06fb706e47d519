"""The checks of `holdfast doctor` for boxes at Daytona."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import httpx

from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.daytona.account import API_URL, Account
from holdfast.providers.daytona.descriptor import KEY_VARIABLE, ORGANIZATION_VARIABLE, URL_VARIABLE

_PURPOSE: Final = "boxes of the provider daytona"
_SECONDS: Final = 5.0


def examine() -> Iterator[CheckResult]:
    """Looks where a server of the same user would look, unless it was given other settings."""
    key = os.environ.get(KEY_VARIABLE)
    account = None
    if key:
        url = os.environ.get(URL_VARIABLE) or API_URL
        account = Account(key, url, organization=os.environ.get(ORGANIZATION_VARIABLE))
    yield judge(find_spec("daytona") is not None, account, None if account is None else ask(account))


def ask(account: Account) -> int | str:
    """Returns the status of a small request to the API, or why there is none."""
    headers = {"Authorization": f"Bearer {account.api_key}"}
    if account.organization is not None:
        headers["X-Daytona-Organization-ID"] = account.organization
    try:
        url = f"{account.api_url.rstrip('/')}/sandbox"
        return httpx.get(url, params={"limit": 1}, headers=headers, timeout=_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__


def judge(installed: bool, account: Account | None, answer: int | str | None) -> CheckResult:
    if account is None:
        next_step = f"only if you want such boxes: set {KEY_VARIABLE}, or holdfast up --daytona-api-key KEY"
        return CheckResult("daytona", CheckStatus.MISSING, "no key", _PURPOSE, next_step)
    if not installed:
        next_step = "pip install 'holdfast[daytona]'"
        return CheckResult("daytona", CheckStatus.LIMITED, "a key, but the SDK is not installed", _PURPOSE, next_step)
    if answer == 200:
        return CheckResult("daytona", CheckStatus.OK, f"{account.api_url} accepts the key", _PURPOSE)
    if isinstance(answer, str):
        detail = f"{account.api_url} does not answer: {answer}"
        return CheckResult("daytona", CheckStatus.LIMITED, detail, _PURPOSE, f"check the network, and {URL_VARIABLE}")
    detail = f"{account.api_url} answers with status {answer}"
    refused = answer in (401, 403)
    next_step = f"check {KEY_VARIABLE} and {ORGANIZATION_VARIABLE}" if refused else "try again later"
    return CheckResult("daytona", CheckStatus.LIMITED, detail, _PURPOSE, next_step)
