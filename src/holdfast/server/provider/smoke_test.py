"""Tests a provider as a caller would use it: reach, authorize, create, exec, delete, each with its time.

The box is deleted, even if a step fails or the caller disconnects. If the server dies, an ephemeral box is left,
which the next server deletes when it has been idle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import Step
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, CannotExecute
from holdfast.api.ids import new_id
from holdfast.api.providers import ProviderTrial
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.diagnosis import take_step
from holdfast.time_limit import time_limit

_ACCESS_SECONDS: Final = 120.0
_CREATE_SECONDS: Final = 300.0
_EXEC_SECONDS: Final = 60.0
_DELETE_SECONDS: Final = 120.0
_IDLE_SECONDS: Final = 300
_COMMAND: Final = ("uname", "-sr")

Tell = Callable[[Step], None]
"""Gets each step when it is done."""


async def try_provider(boxes: Boxes, name: str, tell: Tell, redacted: Callable[[str], str]) -> ProviderTrial:
    """Test a provider. Raises `Unsupported` if there is none of that name. `redacted` removes secrets from texts."""
    trial = _Trial(boxes, name, boxes.provider(name), tell, redacted)
    await trial.run()
    return ProviderTrial(name=name, ok=all(each.ok for each in trial.steps), steps=tuple(trial.steps))


class _Trial:
    def __init__(self, boxes: Boxes, name: str, provider: Provider, tell: Tell, redacted: Callable[[str], str]) -> None:
        self._boxes = boxes
        self._name = name
        self._provider = provider
        self._tell = tell
        self._redacted = redacted
        self._id = new_id("b")
        self.steps: list[Step] = []

    async def run(self) -> None:
        for step in await self._access():
            self._note(step)
        if not all(each.ok for each in self.steps):
            return
        if not await self._take("create", self._create, _CREATE_SECONDS, "holdfast box diagnose"):
            return
        try:
            await self._take("exec", self._exec, _EXEC_SECONDS, f"holdfast box diagnose --provider {self._name}")
        except BaseException:
            await to_the_end(self._delete())
            raise
        await to_the_end(self._take("delete", self._delete, _DELETE_SECONDS, f"holdfast box delete {self._id}"))

    async def _access(self) -> list[Step]:
        try:
            self._provider.check_usable()
            async with time_limit(_ACCESS_SECONDS):
                return await self._provider.check_access()
        except TimeoutError:
            why = f"no answer in {_ACCESS_SECONDS:g} s"
            return [Step("reach", False, _ACCESS_SECONDS * 1000, why, "check the network, and try again")]
        except BoxError as error:
            return [Step("reach", False, 0.0, error.message, error.hint)]

    async def _take(self, name: str, work: Callable[[], Awaitable[str]], seconds: float, otherwise: str) -> bool:
        async def limited() -> str:
            try:
                async with time_limit(seconds):
                    return await work()
            except TimeoutError:
                raise BoxUnreachable(f"it took more than {seconds:g} s") from None

        return self._note(await take_step(name, limited, otherwise))

    def _note(self, step: Step) -> bool:
        hint = None if step.next_step is None else self._redacted(step.next_step)
        step = replace(step, detail=self._redacted(step.detail), next_step=hint)
        self.steps.append(step)
        self._tell(step)
        return step.ok

    async def _create(self) -> str:
        # With an id, so that it does not come from the pool, and the pool does not expect more of its kind.
        await self._boxes.create(_spec(self._name, self._provider), id=self._id)
        return f"box {self._id}"

    async def _exec(self) -> str:
        async with await self._boxes.open(self._id) as box:
            return await _run(box)

    async def _delete(self) -> str:
        await self._boxes.delete(self._id)
        return f"box {self._id}"


async def _run(box: Box) -> str:
    done = await box.exec(list(_COMMAND), timeout=_EXEC_SECONDS)
    if done.exit_code != 0:
        raise CannotExecute(f"{' '.join(_COMMAND)} ended with exit code {done.exit_code}")
    return f"{' '.join(_COMMAND)} printed {done.text.strip()[:80]}"


def _spec(name: str, provider: Provider) -> BoxSpec:
    """Returns the spec of the plainest box: without a network if the provider supports that."""
    closed = Capability.NETWORK_NONE in provider.capabilities
    return BoxSpec(
        provider=name,
        network=NetworkPolicy(Network.NONE if closed else Network.OPEN),
        lifetime=Lifetime.EPHEMERAL,
        idle_seconds=_IDLE_SECONDS,
    )
