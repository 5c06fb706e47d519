"""The check of `holdfast doctor` for boxes at Modal. It asks nobody: a server tells whether a token is valid."""

from __future__ import annotations

from typing import Final

from holdfast.providers.check_result import CheckResult, CheckStatus

_PURPOSE: Final = "boxes of the provider modal"


def judge_modal(installed: bool, configured: bool) -> CheckResult:
    """`configured` says whether the vendor's configuration file is there."""
    if not installed:
        next_step = "only if you want such boxes: pip install 'holdfast[modal]'"
        return CheckResult("modal", CheckStatus.MISSING, "the package modal is not installed", _PURPOSE, next_step)
    if not configured:
        next_step = "modal token new, or give a token to the server: holdfast provider add modal"
        return CheckResult(
            "modal", CheckStatus.LIMITED, "installed, but ~/.modal.toml has no token", _PURPOSE, next_step
        )
    return CheckResult("modal", CheckStatus.OK, "installed, with a token in ~/.modal.toml", _PURPOSE)
