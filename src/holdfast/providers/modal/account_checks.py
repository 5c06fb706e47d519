"""Asks Modal, step by step, whether an account can be used."""

from __future__ import annotations

from holdfast.api.box.records import Step
from holdfast.providers.diagnosis import check_account, reach_address, take_step
from holdfast.providers.modal.account import Account, told


async def diagnose_account(account: Account) -> list[Step]:
    steps = [await take_step("modal", lambda: _ask_hello(account), "https://status.modal.com")]
    if steps[-1].ok:
        steps.append(await take_step("app", lambda: _ask_app(account), "modal app list"))
    return steps


async def check_access(name: str, account: Account) -> list[Step]:
    async def authorize() -> str:
        await _ask_hello(account)
        return f"the token is valid, app {await _ask_app(account)}"

    return await check_account(name, lambda: reach_address(account.url), authorize)


async def _ask_hello(account: Account) -> str:
    with told("Modal cannot be reached"):
        await account.hello()
    return "the token is valid"


async def _ask_app(account: Account) -> str:
    with told(f"the app {account.app_name} cannot be looked up"):
        app = await account.app()
    return f"{account.app_name} ({app.app_id})"
