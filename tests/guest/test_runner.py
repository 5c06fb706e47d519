"""The runner: what an agent prints is on the thread, in order and once, and so is its end, whichever that is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.guest.fake_guest_api import FakeGuestApi
from tests.guest.running import alive, appears, start
from tests.providers.stream.test_guest import pythons

from holdfast.threads.protocol.messages import Request, Response

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeGuestApi]:
    async with FakeGuestApi(tmp_path) as api:
        yield api


@pytest.mark.parametrize("python", pythons())
async def test_what_an_agent_prints_is_on_the_thread_with_its_end(
    api: FakeGuestApi, tmp_path: Path, python: str
) -> None:
    script = "say(session='s1'); say(call='c', name='sh'); say(result='ok', call='c'); say(message='m', text='hello')"
    running = await start(api, script, tmp_path / "state", python=(python,))
    assert (await running.wait(), await running.errors()) == (0, "")
    entries = (await api.entries())[1:]
    assert [each["id"] for each in entries] == ["r-1-1-1", "r-1-1-2", "r-1-1-3", "r-1-1-4", "end-r-1"]
    assert [each["payload"]["type"] for each in entries] == [
        "scripted.session", "scripted.call", "scripted.tool", "scripted.assistant", "signal.run.finished",
    ]  # fmt: skip
    assert [each["ts"] for each in entries] == sorted(each["ts"] for each in entries)
    end = entries[-1]["payload"]
    assert (end["run"], end["status"], end["exit_code"], end["by"]) == ("r-1", "completed", 0, "runner")
    assert end["usage"]["input"] == 1
    assert 0 <= end["ms"] < 30_000
    assert api.beats() >= 1
    assert not (tmp_path / "state").exists()


async def test_an_agent_that_fails_is_explained_by_the_last_it_said(api: FakeGuestApi, tmp_path: Path) -> None:
    script = "sys.stderr.write('x' * 200000 + '\\nno such model\\n'); sys.stderr.flush(); sys.exit(3)"
    assert await (await start(api, script, tmp_path)).wait() == 0
    (end,) = await api.payloads()
    assert (end["status"], end["exit_code"]) == ("failed", 3)
    assert end["error"]["stderr"].endswith("xxx\nno such model")
    assert len(end["error"]["stderr"]) < 10_000
    assert end["error"]["message"]


async def test_an_agent_that_is_not_there_fails_the_run(api: FakeGuestApi, tmp_path: Path) -> None:
    assert await (await start(api, "", tmp_path, argv=["no-such-agent", "x"])).wait() == 0
    (end,) = await api.payloads()
    assert (end["status"], end["error"]["code"]) == ("failed", "agent_not_started")
    assert "no-such-agent" in end["error"]["message"]


@pytest.mark.parametrize(
    ("before", "kinds"),
    [
        ("", []),
        ("say(session='s')", ["session"]),
        ("say(delta='half of ', message='m'); say(delta='it', message='m')", ["delta", "assistant"]),
        ("say(call='c', name='sh')", ["call", "tool"]),
        ("say(message='m', text='all')", ["assistant"]),
        ('sys.stdout.write(\'{"text": "no end\'); sys.stdout.flush()', ["notice"]),
    ],
)
async def test_an_agent_killed_at_any_stage_leaves_whole_entries_and_one_end(
    api: FakeGuestApi, tmp_path: Path, before: str, kinds: list[str]
) -> None:
    script = f"{before}\nos.kill(os.getpid(), 9)"
    assert await (await start(api, script, tmp_path)).wait() == 0
    *others, end = await api.payloads()
    found = [each["type"].partition(".")[2] for each in others]
    assert list(dict.fromkeys(found)) == kinds
    assert (end["status"], end["exit_code"]) == ("failed", 137)
    if "assistant" in kinds and "delta" in kinds:
        assert (others[-1]["text"], others[-1]["partial"]) == ("half of it", True)
    if "tool" in kinds:
        assert others[-1]["status"] == "interrupted"


LIMIT = {"code": "memory_limit", "message": "the box ran out of memory", "hint": "give it more"}


async def test_an_agent_that_a_limit_of_its_box_killed_says_which(api: FakeGuestApi, tmp_path: Path) -> None:
    api.limit = LIMIT
    script = "say(call='c', name='sh'); sys.stderr.write('last words'); sys.stderr.flush(); os.kill(os.getpid(), 9)"
    assert await (await start(api, script, tmp_path)).wait() == 0
    *_, tool, end = await api.payloads()
    assert (tool["status"], end["status"], end["exit_code"]) == ("interrupted", "failed", 137)
    assert end["error"] == {**LIMIT, "stderr": "last words"}


@pytest.mark.parametrize(
    "script", ["sys.exit(3)", "os.kill(os.getpid(), 15)", "say(failed='it failed'); sys.exit(137)"]
)
async def test_of_an_agent_that_was_not_killed_no_limit_is_asked(
    api: FakeGuestApi, tmp_path: Path, script: str
) -> None:
    api.limit = LIMIT
    assert await (await start(api, script, tmp_path)).wait() == 0
    assert (await api.payloads())[-1]["error"]["code"] in ("agent_failed", "agent_killed", "scripted")
    assert [path for path, _ in api.requests if path.endswith("/limit")] == []


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_a_server_that_does_not_answer_about_limits_at_once_is_asked_again_or_not_at_all(
    api: FakeGuestApi, tmp_path: Path, status: int
) -> None:
    async def refuse(request: Request) -> Response | None:
        asked = [path for path, _ in api.requests if path.endswith("/limit")]
        return Response(status, []) if request.path.endswith("/limit") and not asked else None

    api.limit, api.fault = LIMIT, refuse
    assert await (await start(api, "os.kill(os.getpid(), 9)", tmp_path)).wait() == 0
    expected = "agent_killed" if status == 404 else "memory_limit"
    assert [each["error"]["code"] for each in await api.payloads("finished")] == [expected]


async def test_an_agent_that_says_it_is_done_and_stays_is_ended(api: FakeGuestApi, tmp_path: Path) -> None:
    script = "signal.signal(15, signal.SIG_IGN)\nsay(message='m', text='x'); say(done=True)\ntime.sleep(1000)"
    running = await start(api, script, tmp_path, limits={"soft_end": 0.1})
    assert await running.wait() == 0
    end = (await api.payloads())[-1]
    assert (end["status"], end["exit_code"]) == ("completed", 137)


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_a_cancelled_agent_is_asked_by_a_signal_and_says_its_last_words(
    api: FakeGuestApi, tmp_path: Path, how: str
) -> None:
    script = (
        "asked = []\nsignal.signal(2, lambda *_: asked.append(1))\nsay(session='up')\n"
        "while not asked: time.sleep(0.01)\nsay(message='m', text='stopping'); sys.exit(1)"
    )
    running = await start(api, script, tmp_path, beat=1000)
    await api.until_posted("session")
    api.cancel = how
    os.kill(running.pid, signal.SIGTERM)  # look now
    assert await running.wait() == 0
    *others, end = await api.payloads()
    assert others[-1]["text"] == "stopping"
    assert (end["status"], end["exit_code"]) == ("cancelled", 1)
    assert "error" not in end


async def test_a_cancelled_agent_is_asked_by_a_line_where_it_reads_lines(api: FakeGuestApi, tmp_path: Path) -> None:
    script = (
        "say(session=sys.stdin.readline().strip())\nline = sys.stdin.readline()\n"
        "say(message='m', text=line.strip()); say(done=1); assert sys.stdin.read() == ''"
    )
    abort = {"stdin": '{"type":"abort"}'}
    running = await start(api, script, tmp_path, stdin="the prompt\n", abort=abort, beat=0.05)
    await api.until_posted("session")
    api.cancel = "cancel"
    await api.until_posted("assistant")
    assert await running.wait() == 0
    session, whole, end = await api.payloads()
    assert (session["session"], whole["text"]) == ("the prompt", '{"type":"abort"}')
    assert (end["status"], end["exit_code"]) == ("cancelled", 0)


async def test_a_cancelled_agent_that_does_not_listen_is_killed(api: FakeGuestApi, tmp_path: Path) -> None:
    script = "[signal.signal(each, signal.SIG_IGN) for each in (2, 15)]\nsay(session='up')\ntime.sleep(1000)"
    running = await start(api, script, tmp_path, beat=0.05, limits={"grace": 0.1})
    await api.until_posted("session")
    api.cancel = "cancel"
    assert await running.wait() == 0
    end = (await api.payloads())[-1]
    assert (end["status"], end["exit_code"]) == ("cancelled", 137)


async def test_a_runaway_is_ended(api: FakeGuestApi, tmp_path: Path) -> None:
    running = await start(api, "say(session='up'); time.sleep(1000)", tmp_path, limits={"seconds": 0.3})
    assert await running.wait() == 124
    end = (await api.payloads())[-1]
    assert (end["status"], end["error"]["code"]) == ("failed", "runaway")


async def test_whatever_tools_an_agent_leaves_behind_are_ended(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"""
os.chdir({str(tmp_path)!r})
hold = "echo $$ > {{}}; trap '' TERM HUP INT; while :; do sleep 0.05; done"
subprocess.Popen(["setsid", "sh", "-c", hold.format("one")])
subprocess.Popen(["sh", "-c", "nohup sh -c \\"" + hold.format("two").replace("$", "\\\\$") + "\\" >/dev/null 2>&1 &"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", hold.format("three")], {{}})
    os._exit(0)
while not all(os.path.exists(each) and os.path.getsize(each) for each in ("one", "two", "three")): time.sleep(0.01)
say(message='m', text='left three behind')
"""
    running = await start(api, script, tmp_path / "state")
    assert await running.wait() == 0
    assert (await api.payloads())[-1]["status"] == "completed"
    left = [int((tmp_path / each).read_text()) for each in ("one", "two", "three")]
    assert [pid for pid in left if alive(pid)] == []


async def test_a_runner_that_lost_its_run_kills_and_goes(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"""
tool = subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; echo $$ > {tmp_path}/tool; while :; do sleep 0.05; done"])
while not os.path.exists({str(tmp_path / "tool")!r}): time.sleep(0.01)
while True:
    say(tick=1); time.sleep(0.01)
"""
    running = await start(api, script, tmp_path / "state")
    await api.until_posted("event")
    await api.claim(2)
    count = len(await api.entries())
    assert await running.wait() == 75
    assert len(await api.entries()) == count
    assert not alive(int((tmp_path / "tool").read_text()))
    assert await api.payloads("finished") == []
    assert not (tmp_path / "state").exists()


async def test_of_two_runners_of_a_run_the_later_one_has_it(api: FakeGuestApi, tmp_path: Path) -> None:
    waits = f"say(session='one')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\nsay(late=1)"
    first = await start(api, waits, tmp_path / "a", epoch=1)
    await api.until_posted("session")
    second = await start(api, "say(session='two')", tmp_path / "b", epoch=2)
    assert await second.wait() == 0
    (tmp_path / "go").touch()
    assert await first.wait() == 75
    sessions = [each["session"] for each in await api.payloads("session")]
    assert sessions == ["one", "two"]
    assert len(await api.payloads("finished")) == 1


async def test_a_run_that_the_server_calls_over_is_over(api: FakeGuestApi, tmp_path: Path) -> None:

    async def over(request: Request) -> Response | None:
        return Response(409, []) if request.path.endswith("/beat") else None

    running = await start(api, "say(session='up'); time.sleep(1000)", tmp_path, beat=0.05)
    await api.until_posted("session")
    api.fault = over
    assert await running.wait() == 75
    assert await api.payloads("finished") == []


async def test_words_that_come_together_are_one_entry(api: FakeGuestApi, tmp_path: Path) -> None:
    script = "for n in range(1000): say(delta=str(n) + ' ', message='m')\nsay(message='m', text='whole')"
    assert await (await start(api, script, tmp_path)).wait() == 0
    deltas = await api.payloads("delta")
    assert "".join(each["text"] for each in deltas) == "".join(f"{n} " for n in range(1000))
    assert len(deltas) < 200
    assert {each["message"] for each in deltas} == {"m"}


async def test_nothing_that_an_agent_prints_can_end_its_run(api: FakeGuestApi, tmp_path: Path) -> None:
    script = r"""
out = sys.stdout.buffer
for line in (b'\xff\xfe\x00broken', b'', b'   ', b'[1,2]', b'"text"', b'null', b'{"a": NaN, "b": Infinity, "c": 1e999}',
             b'{"deep": ' + b'[' * 5000 + b']' * 5000 + b'}', b'{"half": "\\ud800"}', b'{"big": ' + b'9' * 400 + b'}',
             b'{"nul": "a\\u0000b", "raw\xc3\xbc": "\xc3"}', b'{"raise": "no order"}', b'{"delta": 5, "message": []}',
             b'{"text": null, "message": {}}', b'{' * 100000):
    out.write(line + b'\n')
out.write(b'{"last": 1}')
"""
    running = await start(api, script, tmp_path)
    assert (await running.wait(), await running.errors()) == (0, "")
    found = await api.payloads()
    assert found[-1]["status"] == "completed"
    assert found[-2]["record"] == {"last": 1}
    assert len(found) >= 12


@pytest.mark.parametrize(("breaks", "status"), [("close", "completed"), ("outcome", "failed")])
async def test_a_reader_that_breaks_at_the_end_ends_the_run_all_the_same(
    api: FakeGuestApi, tmp_path: Path, breaks: str, status: str
) -> None:
    assert await (await start(api, f"say(breaks={breaks!r}); say(n=1)", tmp_path / "state")).wait() == 0
    found = await api.payloads()
    assert found[0]["record"] == {"n": 1}
    assert found[-1]["status"] == status


async def test_a_line_without_end_is_left_out_and_costs_little_memory(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"""
for _ in range(50): sys.stdout.write('x' * (1 << 20))
sys.stdout.write('\\n'); say(after=1)
open({str(tmp_path / "said")!r}, 'w').close()
while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)
"""
    running = await start(api, script, tmp_path / "state")
    await appears(tmp_path / "said")
    await api.until_posted("event")
    assert running.peak_memory() < 80 << 20
    (tmp_path / "go").touch()
    assert await running.wait() == 0
    notice, event, _ = await api.payloads()
    assert str(50 << 20) in notice["text"]
    assert event["record"] == {"after": 1}


async def test_the_token_is_in_no_argument_and_no_environment(api: FakeGuestApi, tmp_path: Path) -> None:
    script = (
        "say(session=json.dumps([dict(os.environ), open('/proc/%d/cmdline' % os.getppid()).read()]))\ntime.sleep(1000)"
    )
    running = await start(api, script, tmp_path, beat=0.05)
    await api.until_posted("session")
    (session,) = await api.payloads()
    assert session["session"].count("HOLDFAST_RUN") == 1
    for token in api.valid:
        assert token not in session["session"]
        with contextlib.suppress(PermissionError):  # a runner lets nobody but root look at it
            assert token.encode() not in Path(f"/proc/{running.pid}/environ").read_bytes()
    api.cancel = "cancel"
    assert await running.wait() == 0


async def test_a_thousand_events_are_all_there_in_order(api: FakeGuestApi, tmp_path: Path) -> None:
    script = "for n in range(5000): say(n=n)"
    assert await (await start(api, script, tmp_path)).wait() == 0
    *events, end = await api.payloads()
    assert [each["record"]["n"] for each in events] == list(range(5000))
    assert end["status"] == "completed"


async def test_a_driver_is_run_from_the_archive(api: FakeGuestApi, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import sys\nfrom holdfast.guest.agent_reader import shorten\n"
        "if __name__ == '__main__':\n    print('{\"session\": \"%s\"}' % '-'.join(sys.argv[1:]), flush=True)\n"
    )
    more = [("holdfast.harnesses.scripted.driver", driver)]
    running = await start(api, "", tmp_path / "state", more=more, driver="scripted", argv=["one", "two"])
    assert await running.wait() == 0
    session, end = await api.payloads()
    assert (session["session"], end["status"]) == ("one-two", "completed")
