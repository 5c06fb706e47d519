"""The state of a context in a file, and in another context: what comes back, what does not, and that it is said."""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.interpreter.places import Place

from holdfast.api.box.box import Box
from holdfast.api.errors.interpreters import InvalidInterpreter, KernelLost, StateFailed
from holdfast.boxes.provider import Provider
from holdfast.guest.kernel.state_file import MAGIC
from holdfast.interpreter.bridge.calls import Call, ToolName
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.kernel.start import start_kernel
from holdfast.interpreter.kernel.state import Checkpoint, export_state, import_state, load, save

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(kernels: Kernel) -> AsyncIterator[Context]:
    context = await kernels.context(f"here-{secrets.token_hex(4)}")
    yield context
    await context.kill()
    await context.close()


@pytest.fixture
async def there(kernels: Kernel) -> AsyncIterator[Context]:
    context = await kernels.context(f"there-{secrets.token_hex(4)}")
    yield context
    await context.kill()
    await context.close()


def path() -> str:
    return f"/tmp/{secrets.token_hex(6)}.state"


async def value(context: Context, code: str) -> Any:
    done = await context.execute(code)
    assert done.ok, done.text
    return done.value


async def test_values_functions_classes_lambdas_and_modules_come_back_in_another_context(
    here: Context, there: Context
) -> None:
    await value(
        here,
        """
import json, os.path as p, collections, xml.dom.minidom
from dataclasses import dataclass, field
from enum import Enum

rate = 3
@dataclass
class Sale:
    amount: int
    tags: list = field(default_factory=list)
    def worth(self): return self.amount * rate
class Kind(Enum):
    A = 1
def total(sales): return sum(each.worth() for each in sales)
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
async def later(): return 'late'
step = counter(); step()
twice = lambda x: 2 * x
sales = [Sale(1), Sale(2)]
kinds = {Kind.A: 'a'}
data = bytearray(b'x' * 1000)
loop = []; loop.append(loop)
""",
    )
    saved = await save(here, file := path())
    assert saved.unsaved == {}
    assert {"json", "p", "Sale", "total", "twice", "step", "sales", "loop"} <= set(saved.names)
    assert "_" not in saved.names
    assert (saved.python, saved.path) == (here.python, file)
    loaded = await load(there, file)
    assert (set(loaded.names), loaded.unsaved) == (set(saved.names), {})
    assert await value(
        there,
        "total(sales), twice(4), step(), step(), kinds[Kind.A], len(data), loop[0] is loop,"
        " json.dumps(p.join('a', 'b')), await later(), type(sales[0]) is Sale, xml.dom.minidom.__name__,"
        " Sale.__module__",
    ) == (9, 8, 2, 3, "a", 1000, True, '"a/b"', "late", True, "xml.dom.minidom", "__main__")
    # They are functions of the namespace that there is now, not of a copy of the old one.
    assert await value(there, "rate = 10\ntotal(sales)") == 30


async def test_what_names_share_they_share_again(here: Context, there: Context) -> None:
    await value(here, "a = {'n': 1}; b = [a]; class_ = type('T', (), {'held': a})\ndef f(x=a): return x")
    await save(here, file := path())
    await load(there, file)
    assert await value(there, "a['n'] = 2; b[0] is a, f() is a, class_.held is a, b[0]['n']") == (True, True, True, 2)


async def test_names_that_cannot_be_saved_are_told_with_why_and_take_nobody_along(
    here: Context, there: Context
) -> None:
    await value(
        here,
        """
import socket, threading
shared = [1, 2]
file = open('/dev/null')
first = {'s': shared, 'file': file}
lock = threading.Lock()
generator = (n for n in range(3))
class Rude:
    def __reduce__(self): raise SystemExit('no')
rude = Rude()
everything = globals()
deep = []
for _n in range(100_000): deep = [deep]
def reads(): return file.name
last = {'s': shared}
""",
    )
    saved = await save(here, file := path())
    assert set(saved.unsaved) == {"file", "first", "lock", "generator", "rude", "everything", "deep"}
    assert saved.unsaved["file"] == "TypeError: cannot pickle an open file: '/dev/null'"
    assert "generator" in saved.unsaved["generator"]
    assert "SystemExit: no" in saved.unsaved["rude"]
    assert await value(here, "file.closed, len(shared)") == (False, 2), "who was saved goes on as it was"
    loaded = await load(there, file)
    assert set(loaded.names) == set(saved.names)
    assert await value(there, "last['s'] is shared, shared, Rude.__name__") == (True, [1, 2], "Rude")
    done = await there.execute("reads()")
    assert done.error is not None
    assert done.error.kind == "NameError"


async def test_loading_replaces_and_never_merges(here: Context) -> None:
    await value(here, "class A: pass\nx = 1; old = A()")
    await save(here, file := path())
    await value(here, "x = 2; y = 3; A.added = True; import json")
    await load(here, file)
    assert await value(here, "x, 'y' in globals(), 'json' in globals(), hasattr(A, 'added'), type(old) is A") == (
        1, False, False, False, True,
    )  # fmt: skip


async def test_what_cannot_be_loaded_is_told_and_the_rest_is_there(
    here: Context, there: Context, kernels: Kernel
) -> None:
    await kernels.box.files.write("/home/box/lib/fleeting.py", b"class Thing:\n    pass\nthing = Thing()\n")
    await value(
        here,
        """
import sys; sys.path.insert(0, '/home/box/lib')
import fleeting
from fleeting import Thing
shared = ['s']
a = [shared, Thing()]
b = [shared, 'fine']
class Picky:
    def __setstate__(self, state): raise ValueError('not today')
picky = Picky(); picky.x = 1
c = [b, 5]
apart = ['s', 'amount']
also_apart = {'amount': 1}
""",
    )
    saved = await save(here, file := path())
    assert saved.unsaved == {}
    await kernels.box.files.delete("/home/box/lib", recursive=True)
    loaded = await load(there, file)
    assert set(loaded.unsaved) == {"fleeting", "Thing", "shared", "a", "b", "c", "Picky", "picky"}
    assert loaded.unsaved["fleeting"] == "ModuleNotFoundError: No module named 'fleeting'"
    assert loaded.unsaved["picky"] == "ValueError: not today (it shares objects with Picky)"
    assert "No module named 'fleeting' (it shares objects with shared, b, c)" in loaded.unsaved["a"]
    assert await value(there, "apart, also_apart, 'a' in globals()") == (["s", "amount"], {"amount": 1}, False)


async def test_tracebacks_of_loaded_functions_show_their_lines(here: Context, there: Context) -> None:
    await value(here, "1")
    await value(here, "def broken():\n    raise RuntimeError('as ever')  # this line")
    await save(here, file := path())
    await value(there, "def other():\n    return 'another line'")
    await value(there, "2")
    await load(there, file)
    done = await there.execute("broken()")
    assert done.error is not None
    assert "# this line" in done.error.traceback
    assert "another line" not in done.error.traceback


async def test_tools_of_the_host_are_found_again_and_never_saved(here: Context, there: Context) -> None:
    async def handle(call: Call) -> Any:
        return f"{call.name} {call.args[0]}"

    await here.define([ToolName("ask"), ToolName("gone")])
    await there.define([ToolName("ask")])
    await value(here, "keep = [ask]; lost = gone\ndef through(): return ask('f')")
    saved = await save(here, file := path())
    assert set(saved.names) == {"keep", "lost", "through"}
    loaded = await load(there, file)
    assert loaded.unsaved == {"lost": "LookupError: the host has no gone here"}
    assert set(loaded.names) == {"keep", "through"}
    assert (await there.execute("keep[0]('k'), through(), ask('n')", handler=handle)).value == (
        "ask k",
        "ask f",
        "ask n",
    )


async def test_a_state_of_another_python_gives_its_data_and_says_what_it_cannot(
    here: Context, there: Context, kernels: Kernel
) -> None:
    await value(
        here,
        "data = {'a': [1, 2]}\ndef f(): return 'a'\nclass A:\n    def a(self): return 1\n"
        "b = [data]; held = {'f': f}; made = A()",
    )
    await save(here, file := path())
    whole = await kernels.box.files.read(file)
    await kernels.box.files.write(file, reindexed(whole, python=[3, 4, 0]))
    loaded = await load(there, file)
    assert set(loaded.names) == {"data", "b"}
    assert "it contains code of Python 3.4" in loaded.unsaved["f"]
    assert set(loaded.unsaved) == {"f", "A", "held", "made"}
    assert await value(there, "b[0] is data, data") == (True, {"a": [1, 2]})


def reindexed(whole: bytes, **changes: Any) -> bytes:
    length = struct.unpack(">QI", whole[-12:])[0]
    index = {**json.loads(whole[-12 - length : -12]), **changes}
    told = json.dumps(index).encode()
    return whole[: -12 - length] + told + struct.pack(">QI", len(told), zlib.crc32(told))


async def test_damaged_and_hostile_files_are_errors_and_change_nothing(here: Context, kernels: Kernel) -> None:
    await value(here, "x = list(range(100)); y = 'y'")
    await save(here, file := path())
    whole = await kernels.box.files.read(file)
    index = json.loads(whole[-12 - struct.unpack(">QI", whole[-12:])[0] : -12])
    first = index["values"][0]
    wrong = {
        "empty": b"",
        "text": b"hello",
        "cut": whole[:-20],
        "short": MAGIC,
        "flipped": whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        "no index": MAGIC + struct.pack(">QI", 0, 0),
        "long index": whole[:-12] + struct.pack(">QI", 1 << 60, 0),
        "other index": reindexed(whole, values=[{**first, "at": 0}]),
        "negative": reindexed(whole, values=[{**first, "size": -1}]),
        "lists": reindexed(whole, modules=[1], sources=3),
        "kinds": reindexed(whole, python="3"),
        "nothing": reindexed(whole, values=None),
    }
    await value(here, "z = 'still here'")
    for what, data in wrong.items():
        await kernels.box.files.write(file, data)
        with pytest.raises(StateFailed, match=r"NotAState"):
            await load(here, file)
        assert await value(here, "x[-1], y, z") == (99, "y", "still here"), what
    with pytest.raises(StateFailed, match="FileNotFoundError"):
        await load(here, "/tmp/nothing-here")
    hostile = b"\x80\x05cos\n_exit\nK\x07\x85R."
    value_of = {**first, "size": len(hostile), "crc": zlib.crc32(hostile), "at": len(MAGIC)}
    await kernels.box.files.write(file, MAGIC + hostile + reindexed(whole, values=[value_of])[index_at(whole) :])
    with pytest.raises(KernelLost, match="exit code 7"):
        await load(here, file)


def index_at(whole: bytes) -> int:
    return len(whole) - 12 - int(struct.unpack(">QI", whole[-12:])[0])


async def test_a_file_that_cannot_be_written_is_an_error_and_the_old_one_stays(here: Context, kernels: Kernel) -> None:
    await value(here, "x = 1")
    for target in ("/proc/nowhere/x", "/tmp"):
        with pytest.raises(StateFailed):
            await save(here, target)
    await save(here, "/tmp/kept/state")
    before = await kernels.box.files.read("/tmp/kept/state")
    await value(here, "class Slow:\n    def __reduce__(self):\n        while True: pass\nslow = Slow()")
    with pytest.raises(StateFailed, match="took longer than"):
        await save(here, "/tmp/kept/state", seconds=0.3)
    assert await kernels.box.files.read("/tmp/kept/state") == before
    assert [each.name for each in await kernels.box.files.list("/tmp/kept")] == ["state"]
    assert await value(here, "x") == 1, "it was interrupted, not killed"


async def test_a_state_goes_from_box_to_box_as_bytes(here: Context, provider: Provider, place: Place) -> None:
    await value(
        here,
        "import math\nblob = bytes(3_000_000)\ndef area(r): return round(math.pi * r, 1)\ngone = open('/dev/null')",
    )
    state = await export_state(here, now=lambda: 7)
    assert (state.checkpoint.size, state.checkpoint.saved_at, state.checkpoint.path) == (len(state.data), 7, None)
    assert Checkpoint.from_json(json.loads(json.dumps(state.checkpoint.to_json()))) == state.checkpoint
    assert "gone" in state.checkpoint.unsaved
    box = await provider.create(place.spec, id="other")
    kernels = await start_kernel(box)
    context = await kernels.context()
    await value(context, "area = None; mine = 1")
    assert set((await import_state(context, state.data)).names) == {"math", "blob", "area"}
    assert await value(context, "area(2), len(blob), 'mine' in globals()") == (6.3, 3_000_000, False)
    assert not await leftovers(box)
    await kernels.end()
    await box.delete()
    assert not await leftovers(here.box)
    with pytest.raises(StateFailed, match="can be exported"):
        await export_state(here, limit=1000)
    assert not await leftovers(here.box)
    with pytest.raises(InvalidInterpreter):
        await import_state(here, b"\x80\x04hello")


async def leftovers(box: Box) -> list[str]:
    return [each.name for each in await box.files.list("/tmp") if "holdfast-state" in each.name]


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"format": 2, "python": "3.11", "names": [], "unsaved": {}, "size": 1, "savedAt": 1, "path": None},
        {"format": 1, "python": "3.11", "names": [5], "unsaved": {}, "size": 1, "savedAt": 1, "path": None},
        {"format": 1, "python": "3.11", "names": ["x" * 5000], "unsaved": {}, "size": 1, "savedAt": 1, "path": None},
        {"format": 1, "python": "3.11", "names": [], "unsaved": {"x": 1}, "size": 1, "savedAt": 1, "path": None},
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInterpreter):
        Checkpoint.from_json(document)


async def test_nothing_of_it_is_loaded_before_it_is_needed(here: Context) -> None:
    later = ("pickle", "logging", "holdfast.guest.kernel.state_file")
    code = f"import sys\n[each for each in {later} if each in sys.modules]"
    assert await value(here, code) == []
