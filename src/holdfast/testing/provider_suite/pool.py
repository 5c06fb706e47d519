"""Pooled boxes: each is handed over once, to one caller, and is then like any other new box."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.api.box.box import Box, BoxInfo, Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxNotFound, BoxStopped, BoxUnreachable
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import POOL
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Reopen, Suite, claims, fresh, sh, text

_ASKERS = 8
_NOW = 1_800_000_000_000


async def made_ahead(factory: BoxFactory, spec: BoxSpec) -> Box:
    return await factory.box_of(spec, labels={POOL: spec.hash})


async def described(provider: Provider, id: str) -> BoxInfo:
    (info,) = [each for each in await provider.find() if each.id == id]
    return info


class PooledBoxes(Suite):
    @pytest.fixture
    async def other(self, reopen: Reopen) -> AsyncIterator[Provider]:
        """Another process on the same data."""
        other = await reopen()
        yield other
        await other.close()

    @claims(Capability.POOL)
    async def test_a_box_of_the_pool_becomes_somebodys(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        theirs = replace(spec, lifetime=Lifetime.EPHEMERAL, idle_seconds=77, labels={"mine": "yes"})
        box = factory.handle(await provider.hand_over(ahead.id, theirs, labels={"extra": "too"}, created_at=_NOW))
        for info in (box.info, await described(provider, box.id), (await factory.attach(box.id)).info):
            assert info.id == ahead.id
            assert info.spec == theirs
            assert info.labels == {"mine": "yes", "extra": "too"}
            assert info.created_at == _NOW
            assert info.power is Power.RUNNING
        assert await text(box, "echo works") == "works"

    @claims(Capability.POOL)
    async def test_of_all_who_ask_for_a_box_of_the_pool_at_once_one_gets_it(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)

        async def ask(number: int) -> BoxInfo:
            box = await provider.hand_over(ahead.id, spec, labels={"asker": str(number)}, created_at=number)
            return factory.handle(box).info

        answers = await asyncio.gather(*(ask(number) for number in range(_ASKERS)), return_exceptions=True)
        got = [answer for answer in answers if isinstance(answer, BoxInfo)]
        assert len(got) == 1
        assert [type(answer) for answer in answers if not isinstance(answer, BoxInfo)] == [BoxConflict] * (_ASKERS - 1)
        assert (await described(provider, ahead.id)).labels == got[0].labels

    @claims(Capability.POOL)
    async def test_a_box_of_the_pool_is_handed_over_once_across_processes_too(
        self, provider: Provider, other: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        asked = [
            each.hand_over(ahead.id, spec, labels={"asker": str(number)}, created_at=_NOW)
            for number, each in enumerate((provider, other, provider, other))
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        got = [answer for answer in answers if isinstance(answer, Box)]
        for box in got:
            await box.close()
        assert len(got) == 1
        assert all(isinstance(answer, (Box, BoxConflict)) for answer in answers)
        for each in (provider, other):
            assert (await described(each, ahead.id)).labels == got[0].info.labels
            with pytest.raises(BoxConflict):
                await each.hand_over(ahead.id, spec, labels={}, created_at=_NOW)

    @claims(Capability.POOL)
    async def test_whoever_comes_later_finds_a_box_that_was_handed_over_as_it_is(
        self, provider: Provider, reopen: Reopen, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        factory.handle(await provider.hand_over(ahead.id, spec, labels={"extra": "too"}, created_at=_NOW))
        later = await reopen()
        try:
            info = await described(later, ahead.id)
            assert (info.spec, info.labels, info.created_at) == (spec, {**spec.labels, "extra": "too"}, _NOW)
            async with await later.attach(ahead.id) as box:
                assert await text(box, "echo works") == "works"
        finally:
            await later.close()

    @claims(Capability.POOL)
    async def test_only_boxes_of_the_pool_are_handed_over_and_only_for_their_spec(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead, ordinary = await made_ahead(factory, spec), await factory.box(labels={"some": "one"})
        another = replace(spec, env={"ANOTHER": "machine"})
        for id, wanted in ((ahead.id, another), (ordinary.id, spec)):
            with pytest.raises(BoxConflict):
                await provider.hand_over(id, wanted, labels={}, created_at=_NOW)
        with pytest.raises((BoxNotFound, BoxGone)):
            await provider.hand_over(fresh("none"), spec, labels={}, created_at=_NOW)
        assert (await described(provider, ordinary.id)).labels == {**spec.labels, "some": "one"}
        assert (await described(provider, ahead.id)).labels == {**spec.labels, POOL: spec.hash}

    @claims(Capability.POOL)
    async def test_a_box_that_is_labelled_anew_for_the_pool_stays_in_it(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        for labels in ({POOL: spec.hash, "holder": "another"}, {"some": "one"}):
            factory.handle(await provider.hand_over(ahead.id, spec, labels=labels, created_at=_NOW))
            assert (await described(provider, ahead.id)).labels == {**spec.labels, **labels}

    @claims(Capability.POOL, Capability.STOP)
    async def test_a_box_that_died_in_the_pool_is_said_to_be_dead_to_the_one_who_gets_it(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        await ahead.stop()
        with pytest.raises((BoxStopped, BoxUnreachable)):
            await provider.hand_over(ahead.id, spec, labels={}, created_at=_NOW)
        with pytest.raises(BoxConflict):
            await provider.hand_over(ahead.id, spec, labels={}, created_at=_NOW)

    @claims(Capability.POOL)
    async def test_whoever_gives_up_halfway_leaves_the_box_in_the_pool_or_handed_over(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        for turns in range(12):
            asking = asyncio.ensure_future(
                provider.hand_over(ahead.id, spec, labels={"asker": str(turns)}, created_at=_NOW)
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            (answer,) = await asyncio.gather(asking, return_exceptions=True)
            labels = (await described(provider, ahead.id)).labels
            if POOL in labels:
                assert labels == {**spec.labels, POOL: spec.hash}
                assert isinstance(answer, (asyncio.CancelledError, BoxError))
            else:
                assert labels == {**spec.labels, "asker": str(turns)}
                if isinstance(answer, Box):
                    factory.handle(answer)
                break
        assert await text(await factory.attach(ahead.id), "echo works") == "works"

    @claims(Capability.POOL)
    async def test_a_box_of_the_pool_is_like_one_that_was_made_just_now(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        warm = factory.handle(await provider.hand_over(ahead.id, spec, labels={}, created_at=_NOW))
        cold = await factory.box_of(spec)
        metrics = await warm.metrics()
        assert (metrics.processes, metrics.connections) == (0, 0)
        assert await warm.processes() == []
        assert [each.path for each in await warm.files.list(".")] == [each.path for each in await cold.files.list(".")]
        for script in (
            "env | grep -v ^_ | sort",
            'pwd; ls -A; ls -A "$HOME" "${TMPDIR:-/tmp}"',
            "id; umask; ulimit -a",
            'test -z "${HOLDFAST_BOX:-}" || hostname',
        ):
            assert (await text(warm, script)).replace(warm.id, "ID") == (await text(cold, script)).replace(
                cold.id, "ID"
            )
        date = int(await text(warm, "date +%s"))
        assert abs(date - time.time()) < 60
        assert await text(warm, "head -c 16 /dev/urandom | od -An -tx1") != await text(
            cold, "head -c 16 /dev/urandom | od -An -tx1"
        )

    @claims(Capability.POOL, Capability.ISOLATION)
    async def test_nothing_runs_in_a_box_of_the_pool_that_does_not_in_a_new_one(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        warm = factory.handle(await provider.hand_over(ahead.id, spec, labels={}, created_at=_NOW))
        cold = await factory.box_of(spec)
        for script in (
            "set -- /proc/[0-9]*; echo $#",
            "cut -d' ' -f2-5 /proc/mounts | sed 's/lowerdir=.*//; s/[ug]id=[0-9]*//g' | sort",  # each its own user
            "cat /proc/net/tcp /proc/net/unix | wc -l",
            'find / -xdev -newer /proc/1 -type f 2>/dev/null | grep -v "^/proc" | sort',
        ):
            assert (await text(warm, f"{{ {script}; }} || true")).replace(warm.id, "ID") == (
                await text(cold, f"{{ {script}; }} || true")
            ).replace(cold.id, "ID")

    @claims(Capability.POOL)
    async def test_idle_time_begins_when_a_box_is_handed_over(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        ahead = await made_ahead(factory, spec)
        began = time.monotonic()
        await asyncio.sleep(0.3)  # is what is measured
        warm = factory.handle(await provider.hand_over(ahead.id, spec, labels={}, created_at=int(time.time() * 1000)))
        handed = time.monotonic()
        idle = (await warm.metrics()).idle_seconds
        assert idle <= time.monotonic() - handed + 0.1 < time.monotonic() - began

    @claims(Capability.POOL)
    async def test_the_folder_of_a_box_of_the_pool_is_as_old_as_the_box(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        spec = replace(spec, workdir=f"{spec.workdir}/inner")
        ahead = await made_ahead(factory, spec)
        await sh(ahead, 'sleep 0.05; echo x > "${TMPDIR:-/tmp}/mark"')
        warm = factory.handle(await provider.hand_over(ahead.id, spec, labels={}, created_at=_NOW))
        assert (await sh(warm, '[ "${TMPDIR:-/tmp}/mark" -nt . ]')).exit_code == 1

    @claims(Capability.POOL, Capability.NETWORK_NONE, Capability.NETWORK_ALLOW, Capability.NETWORK_LIVE)
    async def test_a_box_of_the_pool_has_the_way_out_of_whom_it_is_handed_over_to(
        self, provider: Provider, factory: BoxFactory, spec: BoxSpec
    ) -> None:
        closed = replace(spec, network=NetworkPolicy(Network.NONE))
        theirs = replace(spec, network=NetworkPolicy(Network.ALLOW, ("example.org",)))
        ahead = await made_ahead(factory, closed)
        before = await text(ahead, "env | sort")
        warm = factory.handle(await provider.hand_over(ahead.id, theirs, labels={}, created_at=_NOW))
        cold = await factory.box_of(theirs)
        after = await text(warm, "env | sort")
        assert after.replace(warm.id, "ID") == (await text(cold, "env | sort")).replace(cold.id, "ID")
        assert after != before
        for box in (warm, cold):
            metrics = await box.metrics()
            assert (metrics.sent, metrics.received) == (0, 0)
