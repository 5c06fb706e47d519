"""The checks of `holdfast doctor` for boxes that are sprites."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.sprites.account import Account, find_account
from holdfast.providers.sprites.descriptor import TOKEN_VARIABLE, URL_VARIABLE

_PURPOSE: Final = "boxes of the provider sprites"
_SECONDS: Final = 5.0


def examine() -> Iterator[CheckResult]:
    """Looks where a server of the same user would look, unless it was given other settings."""
    account = find_account(os.environ.get(TOKEN_VARIABLE), os.environ.get(URL_VARIABLE), Path.home())
    installed = importlib.util.find_spec("sprites") is not None
    yield judge(installed, account, None if account is None else ask(account))


def ask(account: Account) -> int | str:
    """Returns the status of a small request to the API, or why there is none."""
    try:
        return httpx.get(
            f"{account.url.rstrip('/')}/v1/sprites",
            params={"max_results": 1},
            headers={"Authorization": f"Bearer {account.token}"},
            timeout=_SECONDS,
        ).status_code
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__


def judge(installed: bool, account: Account | None, answer: int | str | None) -> CheckResult:
    if account is None:
        next_step = "only if you want such boxes: holdfast provider add sprites, or log in with `sprite login`"
        return CheckResult("sprites", CheckStatus.MISSING, "no token", _PURPOSE, next_step)
    if not installed:
        next_step = "pip install 'holdfast[sprites]'"
        return CheckResult("sprites", CheckStatus.LIMITED, "a token, but the SDK is not installed", _PURPOSE, next_step)
    if answer == 200:
        return CheckResult("sprites", CheckStatus.OK, f"ok: {account.url} accepts the token", _PURPOSE)
    if isinstance(answer, str):
        detail = f"unreachable: {account.url} does not answer: {answer}"
        return CheckResult(
            "sprites", CheckStatus.LIMITED, detail, _PURPOSE, "check the network, and https://status.sprites.dev"
        )
    detail = f"probe-failed: {account.url} answers with status {answer}"
    next_step = "give a valid token" if answer in (401, 403) else "try again later"
    return CheckResult("sprites", CheckStatus.LIMITED, detail, _PURPOSE, next_step)
