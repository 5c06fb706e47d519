"""One run: starts the agent, turns its lines into entries, ends it, and posts the end of the run.

    working ──(exits · reports its end · cancel · runaway)──▶ ending ──(no process left)──▶ posting ──▶ done
       └────────────────────(another runner has the run)────────────────▶ fenced

Before the end of an agent that was killed is posted, the server is asked whether a limit of the box killed it.

The parts handle time, pipes and the server. This module decides when each of them acts.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from holdfast.guest.init import process_tree
from holdfast.guest.runner.agent import Agent
from holdfast.guest.runner.entries import Entries
from holdfast.guest.runner.heartbeat import Heartbeat
from holdfast.guest.runner.http_client import HttpClient
from holdfast.guest.runner.journal import Journal
from holdfast.guest.runner.limits import LimitQuestion
from holdfast.guest.runner.process_cleanup import ProcessCleanup
from holdfast.guest.runner.producer import Producer
from holdfast.guest.runner.token import Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from holdfast.guest.runner.config import Config
    from holdfast.guest.runner.event_loop import Loop, Timer

    class Reader(Protocol):
        """What of a harness's reader is used here."""

        ended: bool

        def read(self, line: bytes) -> list[dict[str, Any]]: ...

        def close(self) -> list[dict[str, Any]]: ...

        def outcome(self, exit_code: int | None) -> dict[str, Any]: ...


POSTED = 0
BROKEN = 70
FENCED = 75
RUNAWAY = 124
_LEFTOVERS = 1.0
"""Seconds between asking the processes that an agent left behind to end, and killing them."""
_DRAIN = 2.0
"""Seconds that output may still come after every process has ended."""
_SHOWN_STDERR = 8 << 10
_MAX_FAILURES = 3
_KILLED = 137


class Run:
    """One agent. `exit_code` is the runner's own, once the loop has stopped."""

    def __init__(self, config: Config, loop: Loop, reader: Reader) -> None:
        self.exit_code = BROKEN
        self._config = config
        self._loop = loop
        self._reader = reader
        self._began = loop.clock()
        self._token = Token(
            loop, config.url, config.token, lambda: self._fence("the server no longer renews the token")
        )
        self._journal = Journal(config.state, memory=config.memory, limit=config.journal)
        self._entries = Entries(config.run, config.epoch, config.agent, self._journal.add, loop.clock, time.time)
        self._producer = Producer(
            loop,
            self._make_client(),
            self._token,
            self._journal,
            config.thread,
            config.epoch,
            config.seq,
            replace=self._entries.replace,
            on_progress=self._progress,
            on_empty=self._posted,
            on_fenced=self._fence,
        )
        self._heartbeat = Heartbeat(
            loop,
            self._make_client(),
            self._token,
            config.run,
            config.beat,
            on_cancel=self._cancel,
            on_over=self._over,
        )
        self._agent = Agent(loop, self._read, self._output_ended)
        self._agent_exit: int | None = None
        self._flush: Timer | None = None
        self._ending: ProcessCleanup | None = None
        self._tree_ended = False
        self._soft = False
        """The agent reported that it is done, and is being ended because it does not exit."""
        self._cancelled = False
        self._problem: dict[str, Any] | None = None
        """Why the run failed, if the agent does not report that itself."""
        self._fenced = False
        self._question: LimitQuestion | None = None
        """Asked when an agent that was killed has ended."""
        self._posting = False
        self._waiting = False
        """The agent is not read until the server has accepted its earlier output."""
        self._failures = 0

    def _make_client(self) -> HttpClient:
        return HttpClient(self._loop, self._config.url, lambda: self._token.value)

    # --- working ---

    def start(self, argv: list[str], program: int | None) -> None:
        """`argv` is what to execute; `program` a descriptor that it gets as number 3."""
        config = self._config
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.on_signal(signal.SIGTERM, self._heartbeat.beat)
        self._heartbeat.beat()
        self._loop.after(config.seconds, self._run_away)
        if config.timeout:
            self._loop.after(config.timeout_left, self._time_out)
        env = {**os.environ, **config.env, "HOLDFAST_RUN": config.run}
        try:
            self._agent.start(
                argv,
                env,
                config.cwd,
                stdin=None if config.stdin is None else config.stdin.encode("utf-8", "replace"),
                keep_stdin=config.abort_line is not None,
                program=program,
            )
        except (OSError, ValueError) as error:
            self._problem = {
                "code": "agent_not_started",
                "message": "%s cannot be started in %s: %s" % (argv[0], config.cwd, error),
                "hint": "check that the agent is installed in the box, and that this folder exists",
            }
            self._agent.ended = True
            self._end_tree(0.0)

    def _read(self, lines: list[bytes | int]) -> None:
        add = self._entries.add
        for line in lines:
            for payload in self._payloads(line):
                add(payload)
        if self._reader.ended and not self._soft and self._ending is None:
            self._soft = True
            self._agent.close_stdin()
            self._loop.after(self._config.soft_end, self._end_softly)
        self._settle()

    def _payloads(self, line: bytes | int) -> list[dict[str, Any]]:
        if isinstance(line, int):
            return [self._notice("a line of %d bytes was left out: it is too long" % line)]
        try:
            return self._reader.read(line)
        except Exception as error:
            # Nothing that an agent prints may end its run, so a line that cannot be parsed is shown unchanged.
            return [self._notice("%r while reading: %s" % (error, line[:2000].decode("utf-8", "replace")))]

    def _notice(self, text: str) -> dict[str, Any]:
        return {"type": self._config.agent + ".notice", "level": "warning", "text": text}

    def _settle(self) -> None:
        """Post new entries, live text after a moment, and pause the agent if too many entries are waiting."""
        wait = self._entries.wait()
        if wait is not None and wait <= 0:
            self._entries.flush()
        elif wait is not None and self._flush is None:
            self._flush = self._loop.after(wait, self._flush_now)
        if len(self._journal):
            self._producer.wake()
        if self._journal.full and not self._tree_ended and not self._waiting:
            self._waiting = True
            self._agent.pause()
            why = self._journal.disk_problem or "the journal is full"
            self._say("the agent is paused until the server has accepted its output: %s" % why)

    def _flush_now(self) -> None:
        self._flush = None
        self._entries.flush()
        self._settle()

    def _progress(self) -> None:
        if self._journal.lost and not self._posting:
            self._journal.lost = 0
            self._entries.add(self._notice("the disk of the box lost some of the agent's output"))
        if self._waiting and not self._journal.full:
            self._waiting = False
            self._agent.go_on()

    # --- ending ---

    def _reap(self) -> None:
        for pid, code in process_tree.reap():
            if pid == self._agent.pid and self._agent_exit is None:
                self._agent_exit = code
                self._agent.close_stdin()
                self._end_tree(_LEFTOVERS)
        if self._ending is not None and not self._tree_ended:
            self._ending.look_now()

    def _end_softly(self) -> None:
        if self._agent_exit is None:
            self._end_tree(_LEFTOVERS)

    def _cancel(self, how: str) -> None:
        if self._cancelled or self._ending is not None or self._reader.ended:
            return
        self._cancelled = True
        self._abort()

    def _run_away(self) -> None:
        self._loop.after(self._config.patience, lambda: self._stop(BROKEN))
        if self._posting or self._fenced:
            return
        self._problem = {
            "code": "runaway",
            "message": "the run was ended: it took longer than %g s" % self._config.seconds,
            "hint": "give the agent smaller tasks, or the run a larger limit",
        }
        self.exit_code = RUNAWAY
        self._end_tree(self._config.grace)

    def _abort(self) -> None:
        """Ask the agent to end its turn, and end it if it does not."""
        if self._config.abort_line is not None:
            self._agent.write(self._config.abort_line.rstrip("\n").encode("utf-8", "replace") + b"\n")
        else:
            process_tree.send_to([self._agent.pid], self._config.abort_signal)
        self._loop.after(self._config.grace, lambda: self._end_tree(_LEFTOVERS))

    def _time_out(self) -> None:
        if self._posting or self._fenced or self._cancelled or self._ending is not None or self._reader.ended:
            return
        self._problem = {
            "code": "timed_out",
            "message": "the run took longer than its timeout of %d s" % self._config.timeout,
            "hint": "continue with holdfast resume THREAD; --timeout sets a longer limit, --timeout 0 none",
        }
        self._abort()

    def _end_tree(self, grace: float) -> None:
        if self._ending is None:
            self._ending = ProcessCleanup(self._loop, grace, self._all_ended)

    def _all_ended(self) -> None:
        self._tree_ended = True
        if self._fenced:
            self._stop(FENCED)
        elif self._agent.ended:
            self._post_end()
        else:
            self._agent.go_on()  # a pipe holds little, so it is read even if many entries are waiting
            self._loop.after(_DRAIN, self._agent.end_output)

    def _output_ended(self) -> None:
        if self._tree_ended and not self._fenced:
            self._post_end()

    # --- the end ---

    def _post_end(self) -> None:
        if self._posting or self._question is not None:
            return
        self._agent.end_errors()
        for pid, code in process_tree.reap():
            if pid == self._agent.pid and self._agent_exit is None:
                self._agent_exit = code
        for payload in self._leftovers():
            self._entries.add(payload)
        payload = self._finished()
        if was_killed(payload):
            self._settle()
            self._question = LimitQuestion(
                self._loop,
                self._make_client(),
                self._token,
                self._config.run,
                lambda limit: self._post(
                    payload if limit is None else {**payload, "error": {**payload["error"], **limit}}
                ),
            )
        else:
            self._post(payload)

    def _post(self, end: dict[str, Any]) -> None:
        if self._posting or self._fenced:
            return
        self._posting = True
        self._entries.finish(end)
        self._producer.wake()

    def _leftovers(self) -> list[dict[str, Any]]:
        try:
            return self._reader.close()
        except Exception as error:
            return [self._notice("%r while reading its end" % error)]

    def _finished(self) -> dict[str, Any]:
        code = self._agent_exit
        try:
            # If the agent reported its end and was killed because it did not exit, its exit code means nothing.
            outcome = self._reader.outcome(None if self._soft and (code or 0) < 0 else code)
        except Exception as failure:
            outcome = {"status": "failed", "error": {"code": "reader_failed", "message": repr(failure)}}
        status, error = outcome.get("status", "failed"), outcome.get("error")
        if self._problem is not None:
            status, error = "failed", self._problem
        elif self._cancelled:
            status, error = "cancelled", None
        payload: dict[str, Any] = {"type": "signal.run.finished", "run": self._config.run, "status": status}
        if code is not None:
            payload["exit_code"] = code if code >= 0 else 128 - code
        if status == "failed":
            payload["error"] = self._explain(error if isinstance(error, dict) else {}, code)
        if outcome.get("usage"):
            payload["usage"] = outcome["usage"]
        payload["ms"] = int((self._loop.clock() - self._began) * 1000)
        payload["by"] = "runner"
        return payload

    def _explain(self, error: dict[str, Any], code: int | None) -> dict[str, Any]:
        """Returns the error, with the end of the agent's standard error."""
        said = bytes(self._agent.stderr[-_SHOWN_STDERR:]).decode("utf-8", "replace").strip()
        explained = {"code": "agent_failed", **error}
        if not explained.get("message"):
            how = "exited with %s" % code if (code or 0) >= 0 else "was killed by signal %d" % -(code or 0)
            explained["message"] = "the agent %s%s" % (how, ": " + said.splitlines()[-1][:500] if said else "")
        if said:
            explained["stderr"] = said
        hint = explained.get("hint")
        if isinstance(hint, str):
            named = hint.replace("THREAD", self._config.thread)
            explained["hint"] = named.replace("model test NAME", "model test " + self._config.model)
        return explained

    def _posted(self) -> None:
        if self._posting:
            self._stop(RUNAWAY if self.exit_code == RUNAWAY else POSTED)

    def _over(self) -> None:
        """The run is over. If we are posting its end, the answer to that tells whether it is ours."""
        if not self._posting:
            self._fence("the server reports that the run is over")

    def _fence(self, why: str) -> None:
        """End everything here: another runner has the run, or it is over."""
        if self._fenced:
            return
        self._say("fenced: " + why)
        self._fenced = True
        self._producer.close()
        self._heartbeat.close()
        if self._question is not None:
            self._question.close()
        if self._ending is None:
            self._ending = ProcessCleanup(self._loop, 0.0, self._all_ended)
        elif self._tree_ended:
            self._stop(FENCED)
        else:
            self._ending.hurry()

    def _stop(self, code: int) -> None:
        self.exit_code = code
        self._producer.close()
        self._heartbeat.close()
        self._journal.close()
        try:
            os.rmdir(self._config.state)
        except OSError:
            pass  # it is not ours alone
        self._loop.stop()

    def fail(self, error: BaseException) -> None:
        """Handle a bug in the runner: end the run, and post that as its end if possible."""
        self._failures += 1
        self._say("failed: %r" % error)
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except OSError:
            pass
        if self._failures >= _MAX_FAILURES or self._posting:
            process_tree.end_all()
            self._stop(BROKEN)  # the server will notice, and post the end
            return
        if self._problem is None:
            self._problem = {"code": "runner_failed", "message": "the runner failed: %r" % error}
        if self._question is not None:
            self._question.close()
            self._post(self._finished())
        elif self._tree_ended:
            self._loop.after(_DRAIN, self._post_end)
        else:
            self._end_tree(0.0)

    def _say(self, text: str) -> None:
        """Write a line to the output of the runner, for people."""
        try:
            os.write(2, b"runner: %s\n" % text.encode("utf-8", "replace"))
        except OSError:
            pass  # the disk is full


def was_killed(end: dict[str, Any]) -> bool:
    """Returns whether a run failed because its agent was killed, and it is not known by whom."""
    return end.get("exit_code") == _KILLED and (end.get("error") or {}).get("code") == "agent_killed"
