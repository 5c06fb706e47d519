"""Whether Sprites and one of its boxes work: ok, unreachable, agent-missing or probe-failed, each with the remedy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError, BoxGone, BoxNotFound, BoxUnreachable, ProviderRefused
from holdfast.providers.diagnosis import take_step
from holdfast.providers.sprites.api import SpritesApi
from holdfast.providers.sprites.errors import translated

if TYPE_CHECKING:
    from holdfast.providers.sprites.provider import SpritesProvider


class Health(StrEnum):
    OK = "ok"
    UNREACHABLE = "unreachable"
    """The API or the sprite does not answer, or the sprite is gone."""
    AGENT_MISSING = "agent-missing"
    """The sprite answers, but our guest in it does not."""
    PROBE_FAILED = "probe-failed"
    """The API refuses the check: usually a token of another organization."""


REMEDIES = {
    Health.UNREACHABLE: "see https://status.sprites.dev; if the sprite is gone, create the box again",
    Health.AGENT_MISSING: "stop and start the box: that puts the guest into its sprite again",
    Health.PROBE_FAILED: "check that the token belongs to the organization of the sprite: holdfast provider list",
}


def health_of(error: BoxError | None, *, guest: bool = False) -> Health:
    """Returns the health that an error shows. `guest` says that the sprite answered before."""
    if error is None:
        return Health.OK
    if isinstance(error, ProviderRefused):
        return Health.PROBE_FAILED
    if guest and not isinstance(error, (BoxGone, BoxNotFound)):
        return Health.AGENT_MISSING
    if isinstance(error, (BoxUnreachable, BoxGone, BoxNotFound)):
        return Health.UNREACHABLE
    return Health.PROBE_FAILED


async def health_step(name: str, check: Callable[[], Awaitable[str]], *, guest: bool = False) -> Step:
    """Take a step, and name the health that a failure shows. `guest` says that the sprite answered before."""
    seen: list[BoxError] = []

    async def checked() -> str:
        try:
            return await check()
        except BoxError as error:
            seen.append(error)
            raise

    step = await take_step(name, checked, "holdfast doctor")
    if step.ok:
        return step
    health = health_of(seen[0], guest=guest) if seen else Health.AGENT_MISSING
    return Step(step.name, False, step.milliseconds, f"{health}: {step.detail}", REMEDIES[health])


async def diagnose_api(api: SpritesApi, prefix: str) -> list[Step]:
    async def reach() -> str:
        with translated("the API cannot be asked"):
            found = await api.list_sprites(prefix)
        return f"{len(found)} sprites at {api.account.url}, token of {api.account.source}"

    return [await health_step("sprites api", reach)]


async def diagnose_sprite(provider: SpritesProvider, id: str) -> list[Step]:
    """Check one box, step by step, up to the first failure."""

    async def look() -> str:
        return f"{provider.sprite_name(id)} {(await provider.power(id)).value}"

    steps = [await health_step("sprite", look)]
    if not steps[-1].ok:
        return steps
    try:
        box = await provider.attach(id)
    except BoxError as error:
        health = health_of(error, guest=True)
        return [*steps, Step("guest", False, 0.0, f"{health}: {error.message}", REMEDIES[health])]
    for step in await box.ping():
        if step.ok:
            steps.append(step)
        else:
            stopped = step.next_step if isinstance(step.detail, str) and "stopped" in step.detail else None
            remedy = stopped or REMEDIES[Health.AGENT_MISSING]
            steps.append(Step(step.name, False, step.milliseconds, f"{Health.AGENT_MISSING}: {step.detail}", remedy))
    return steps
