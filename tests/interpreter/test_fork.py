"""Live forks of a context: each begins with all that its parent has, and from then on is on its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter.places import Place

from holdfast.api.box.box import Box
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable
from holdfast.boxes.provider import Provider
from holdfast.guest.kernel.huge_pages import scattered
from holdfast.interpreter.bridge.calls import Call, Handler, ToolName
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel

pytestmark = pytest.mark.anyio

_MEMORY = """
def memory(*names):
    with open("/proc/self/smaps_rollup") as file:
        found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file.read().splitlines()[1:]}
    return sum(found[name] for name in names)
"""


@pytest.fixture(scope="module")
async def box(place: Place, provider: Provider) -> Box:
    limited = place.name != "daytona"  # which has no limit of processes
    return await provider.create(replace(place.spec, pids=200) if limited else place.spec, id="forks")


@pytest.fixture
async def parent(kernels: Kernel) -> AsyncIterator[Context]:
    context = await kernels.context(f"c-{secrets.token_hex(4)}")
    yield context
    for info in await kernels.contexts():
        if info.pid is not None:
            await kernels.endpoint.signal(info.id, 9)


async def value(context: Context, code: str, handler: Handler | None = None) -> Any:
    done = await context.execute(code, handler=handler)
    assert done.ok, done.text
    return done.value


async def ended(kernels: Kernel, id: str) -> int:
    """The code that a context ended with, once it has."""
    while True:
        for info in await kernels.contexts():
            if info.id == id and info.pid is None:
                assert info.code is not None
                return info.code
        await asyncio.sleep(0.01)


async def test_each_has_all_that_the_parent_has_and_changes_its_own(parent: Context) -> None:
    await value(parent, "import json\nclass A: pass\na = A(); a.n = 1; b = a\ndef f(): return a.n")
    forks = await parent.fork(3)
    assert len({each.pid for each in (parent, *forks)}) == 4
    for number, fork in enumerate(forks):
        await value(fork, f"a.n += {number + 1}; only = {number}")
    assert [await value(each, "f(), a is b, json.dumps(1)") for each in forks] == [
        (2, True, "1"), (3, True, "1"), (4, True, "1"),
    ]  # fmt: skip
    assert await value(parent, "f(), 'only' in globals()") == (1, False)


async def test_what_they_share_takes_no_memory_a_second_time(parent: Context) -> None:
    size = 256 << 20
    await value(parent, f"{_MEMORY}\nheld = bytearray(b'x') * {size}; things = [str(n) for n in range(100_000)]")
    assert await value(parent, "memory('Private_Dirty')") > size
    forks = await parent.fork(8)
    private = [await value(each, "memory('Private_Dirty', 'Private_Clean')") for each in forks]
    assert sum(private) < 50 << 20
    assert await value(forks[0], "held[-1]") == ord("x")
    await value(forks[0], "import gc; gc.collect()")
    assert await value(forks[0], "memory('Private_Dirty', 'Private_Clean')") < 20 << 20, "no copy by being looked at"


async def test_output_of_each_is_its_own_also_that_of_other_programs(parent: Context) -> None:
    await value(parent, "import os\nname = 'parent'\ndef tell():\n print(name)\n os.system('echo shell ' + name)")
    forks = await parent.fork(4)
    code = "for n in range(20): tell()"
    await asyncio.gather(*(value(each, f"name = 'f{n}'") for n, each in enumerate(forks)))
    told = await asyncio.gather(*(each.execute(code) for each in (*forks, parent)))
    for name, done in zip(("f0", "f1", "f2", "f3", "parent"), told, strict=True):
        assert sorted(set(done.stdout.split("\n"))) == ["", name, f"shell {name}"]
        assert done.stdout.count("\n") == 40


async def test_what_the_parent_has_not_printed_yet_is_printed_once(parent: Context) -> None:
    await value(parent, "import threading\ngo = threading.Event()")
    first = await parent.execute("print('before', end='')")
    (fork,) = await parent.fork(1)
    assert first.stdout == "before"
    assert (await fork.execute("pass")).stdout == ""


async def test_one_is_interrupted_and_the_others_are_not(parent: Context) -> None:
    forks = await parent.fork(3)
    began = [asyncio.Event() for _ in forks]
    code = "import time\nprint('begun', flush=True)\nfor n in range(3000): time.sleep(0.01)\n'to its end'"
    running = [
        asyncio.create_task(fork.execute(code, on_output=lambda *_, event=event: event.set()))
        for fork, event in zip(forks, began, strict=True)
    ]
    for event in began:
        await event.wait()
    await forks[1].interrupt()
    done = await running[1]
    assert done.error is not None
    assert done.error.kind == "KeyboardInterrupt"
    assert not running[0].done()
    assert not running[2].done()
    for fork in (forks[0], forks[2]):
        await fork.interrupt()
    await asyncio.gather(*running)
    assert [await value(each, "1") for each in (*forks, parent)] == [1, 1, 1, 1]


async def test_the_death_of_one_harms_nobody_else(kernels: Kernel, parent: Context) -> None:
    await value(parent, "x = 5")
    first, second = await parent.fork(2)
    with pytest.raises(KernelLost):
        await first.execute("import os; os._exit(7)")
    assert await ended(kernels, first.id) == 7
    assert await value(second, "x") == await value(parent, "x") == 5
    third = (await parent.fork(1))[0]
    assert await value(third, "x") == 5


async def test_forks_outlive_their_parent_and_their_own_ends_are_told(kernels: Kernel, parent: Context) -> None:
    await value(parent, "x = 6")
    first, second = await parent.fork(2)
    await parent.kill()
    assert await ended(kernels, parent.id) == 128 + 9
    assert await value(first, "x") == await value(second, "x") == 6
    with pytest.raises(KernelLost):
        await first.execute("import os; os._exit(3)")
    assert await ended(kernels, first.id) == 3, "who has no parent any more is seen off by the fork server"
    assert await value((await second.fork(1))[0], "x") == 6


async def test_forks_can_be_forked(kernels: Kernel, parent: Context) -> None:
    await value(parent, "path = ['root']")
    generation = [parent]
    for depth in range(3):
        generation = [fork for each in generation for fork in await each.fork(2)]
        await asyncio.gather(*(value(each, f"path.append('{depth}.{n}')") for n, each in enumerate(generation)))
    paths = [await value(each, "'/'.join(path)") for each in generation]
    assert paths[0] == "root/0.0/1.0/2.0"
    assert paths[5] == "root/0.1/1.2/2.5"
    assert len(set(paths)) == 8
    assert await value(parent, "path") == ["root"]


async def test_a_line_of_forks_of_forks_has_no_end(parent: Context) -> None:
    await value(parent, "n = 0")
    last = parent
    for _ in range(20):
        (last,) = await last.fork(1)
        await value(last, "n += 1")
    assert await value(last, "n") == 20


async def test_where_one_cannot_be_reached_none_is_left(
    kernels: Kernel, parent: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Context.connect
    refused: list[str] = []

    async def connect_but_one(self: Context, *, make: bool = False) -> None:
        if not refused and self.id != parent.id:  # whose connection may be made again at any time
            refused.append(self.id)
            raise KernelUnreachable("no room")
        await connect(self, make=make)

    monkeypatch.setattr(Context, "connect", connect_but_one)
    with pytest.raises(KernelUnreachable, match="no room"):
        await parent.fork(3)
    living = [info.id for info in await kernels.contexts() if info.pid is not None]
    assert [each for each in living if each.startswith(parent.id)] == [parent.id]
    assert await value(parent, "1") == 1


async def test_each_calls_its_host_and_gets_its_own_answer(parent: Context) -> None:
    heard: list[tuple[str, Any]] = []
    both = asyncio.Barrier(3)

    def answering(who: str) -> Any:
        async def handle(call: Call) -> Any:
            heard.append((who, call.args[0]))
            if call.args[0] != "me":
                await both.wait()  # all of them are at it at once
            return f"{who} heard {call.args[0]}"

        return handle

    await parent.define([ToolName("ask", "Asks.")])
    await value(parent, "question = 'how'; kept = ask")
    forks = await parent.fork(2)
    handlers = [answering(who) for who in ("parent", "host 0", "host 1")]
    asked = zip((parent, *forks), ("ask(question)", "ask(question + ' far')", "ask('who')"), handlers, strict=True)
    answers = await asyncio.gather(*(value(*each) for each in asked))
    assert answers == ["parent heard how", "host 0 heard how far", "host 1 heard who"]
    assert len(heard) == 3
    assert await value(forks[0], "kept('me')", handlers[1]) == "host 0 heard me", (
        "what was kept of a tool asks the host of who has it now"
    )


async def test_code_awaits_in_a_fork_of_who_has_awaited(parent: Context) -> None:
    await value(
        parent, "import asyncio\nawait asyncio.sleep(0)\ntask = asyncio.ensure_future(asyncio.sleep(0, 'late'))"
    )
    (fork,) = await parent.fork(1)
    assert await value(fork, "await asyncio.sleep(0, 'here')") == "here"
    assert await value(parent, "await task") == "late"


async def test_a_fork_is_found_again_over_another_connection(kernels: Kernel, parent: Context) -> None:
    await value(parent, "x = 1")
    (fork,) = await parent.fork(1)
    await value(fork, "x = 2")
    await fork.close()
    again = await kernels.context(fork.id, make=False)
    assert (await value(again, "x"), again.pid) == (2, fork.pid)


@pytest.mark.places("local", "docker")
async def test_more_forks_than_the_box_may_have_processes_are_refused_and_none_is_left(
    kernels: Kernel, parent: Context
) -> None:
    await value(parent, "x = 1")
    before = {info.id for info in await kernels.contexts() if info.pid is not None}
    with pytest.raises(KernelUnreachable, match="could not fork"):
        await parent.fork(220)
    for id in (info.id for info in await kernels.contexts() if info.pid is not None):
        if id not in before:
            assert await ended(kernels, id) == 128 + 9
    assert await value((await parent.fork(1))[0], "x") == 1


_SMAPS = """\
{at:x}-{end:x} rw-p 00000000 00:00 0 {name}
Size:           {size} kB
Rss:            {size} kB
Shared_Dirty:   {shared} kB
Private_Clean:         0 kB
Private_Dirty:  {private} kB
AnonHugePages:  {large} kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac
"""


def region(at: int, megabytes: int, *, shared: int = 0, missing: int = 0, large: int = 0, name: str = "") -> str:
    size = megabytes << 10
    private = size - (shared << 10) - (missing << 10)
    return _SMAPS.format(at=at, end=at + (megabytes << 20), size=size, shared=shared << 10, private=private,
                         large=large << 10, name=name)  # fmt: skip


@pytest.mark.parametrize(
    ("smaps", "found"),
    [
        ("", []),
        (region(4 << 20, 64), [(4 << 20, 68 << 20)]),
        (region(5 << 20, 64, name="[heap]"), [(6 << 20, 68 << 20)]),
        (region(5 << 20, 1), []),
        (region(4 << 20, 64, large=64), []),
        (region(4 << 20, 64, shared=64), []),
        (region(4 << 20, 64, missing=60), []),
        (region(4 << 20, 64).replace("00:00 0", "fd:01 77"), []),
        (region(4 << 20, 64).replace("rw-p", "r--p"), []),
        (
            region(4 << 20, 8) + region(64 << 20, 8, shared=8) + region(96 << 20, 8),
            [(4 << 20, 12 << 20), (96 << 20, 104 << 20)],
        ),
    ],
)  # fmt: skip
def test_only_what_is_all_there_small_and_nobody_elses_is_gathered(smaps: str, found: list[tuple[int, int]]) -> None:
    assert scattered(smaps.splitlines(keepends=True)) == found


async def test_gathering_changes_nothing_that_code_can_see(parent: Context) -> None:
    code = "things = [(n, str(n)) for n in range(2_500_000)]\nsum(a for a, b in things), things[-1]"
    told = await value(parent, code)
    # Begun once the result is out, given up for each of these, and begun again.
    for _ in range(20):
        assert await value(parent, "sum(a for a, b in things[::1000]), things[-1]") == (
            sum(range(0, 2_500_000, 1000)), (2_499_999, "2499999"),
        )  # fmt: skip
    (fork,) = await parent.fork(1)
    assert await value(fork, "sum(a for a, b in things), things[-1]") == told


@pytest.mark.places("local")
async def test_a_local_box_is_told_how_to_ask_for_large_pages(kernels: Kernel) -> None:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    box: Box = kernels.box
    machine = await asyncio.to_thread(lambda: Path(path).read_text() if Path(path).exists() else "")
    done = await box.exec(["cat", path])
    assert done.stdout.decode() == machine
    assert not (await box.exec(["sh", "-c", f"echo x > {path}"])).ok
    assert (await box.exec(["find", "/sys", "-type", "f"])).stdout.count(b"\n") <= 2
