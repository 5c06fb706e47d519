"""Turns the entries of a thread into the lines that `holdfast run` prints. Pure.

Complete entries become permanent lines. Live text and open tool calls become lines that are redrawn until the complete
entry comes. This module knows types of entries but no agent, and trusts no field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.model.money import describe_cost, describe_in_full
from holdfast.api.outcomes import is_out_of_budget
from holdfast.api.run.hints import hint_for_session
from holdfast.api.thread.entries import Entry, is_passing
from holdfast.cli.command_name import as_called
from holdfast.cli.run.missing import find_missing
from holdfast.cli.run.status import describe_silence
from holdfast.cli.terminal.agent_text import cut, describe_time, lines_of, one_line, pad, plain, width_of, wrap
from holdfast.cli.terminal.console import ACCENT, LABEL_WIDTH, Cell
from holdfast.cli.terminal.session_remarks import answered, asked, changed
from holdfast.cli.terminal.tool_lines import ToolLine, describe_call, describe_tool
from holdfast.exports.marks import FAILOVERS

Line = tuple[Cell, ...]

ANY: Final = "*"
_MOST_WARNINGS: Final = 20
_INDENT: Final = "    "
_WIDEST: Final = 108
"""Longer lines are hard to read."""
_WHAT: Final = 44
_RESULT: Final = 26
_TIME: Final = 9
_NARROW: Final = 28
"""Below this width, a line is not divided into columns."""
_OWN_STATUSES: Final = (502, 504)
"""The model gateway's own statuses, for a provider that cannot be reached or does not answer."""
_OPEN_CALLS: Final = 1000
"""Most open calls to remember."""
_LIVE_TEXT: Final = 64 * 1024
_LONGEST_WORD: Final = 200
"""Most columns of an id, a name or a model."""

_SESSIONS: Final = {
    "continued": "session continued",
    "rebuilt": "session rebuilt from the thread",
    "handed-over": "the transcript handed over",
}
_FILES: Final = {
    "kept": "files kept",
    "snapshot": "files kept by a snapshot",
    "workspace": "files as at the start",
    "empty": "no files",
}
_BOX_LOST: Final = {"box_gone": "is gone", "box_stopped": "was stopped or killed"}
"""What happened to the box, by the error code of the run."""
_WITH_OUTPUT: Final = frozenset({"setup_failed", "service_failed"})
"""Errors whose message has, below its first line, what a command of the environment printed."""
_MOST_OUTPUT: Final = 10
_STAGES: Final = {
    "started": "getting a box",
    "box": "preparing the agent",
    "provisioned": "starting the agent",
    "runner": "waiting for the agent's first output",
    "": "working",
}


@dataclass(slots=True)
class RunSeen:
    """What the entries so far tell about one run."""

    id: str
    began: int
    agent: str = ""
    version: str = ""
    model: str = ""
    resumes: str = ""
    box: str = ""
    provider: str = ""
    isolation: str = ""
    files: str = ""
    session: str = ""
    box_ms: float | None = None
    announced: bool = False
    missing: str = ""
    """What a command did not find: a program, a module, or the network."""
    stage: str = "started"
    last_entry_at: int = 0
    """UTC milliseconds of the latest entry."""
    has_runner: bool = False
    """Whether there was a heartbeat, or output of the agent."""
    installing: str = ""
    """What is being installed on this machine."""
    trouble: str = ""
    """Why its model did not answer, according to the server."""
    cost: float | None = None
    """As the agent says."""
    counted: float | None = None
    """As the server counted it."""
    unpriced: int = 0
    """Calls of models whose price the server does not know. Then what the agent says is not known either."""
    budget: str = ""
    """The last remark on a budget."""
    is_over_budget: bool = False
    cancel: str = ""
    """What was requested: cancel or interrupt."""
    status: str = ""
    code: str = ""
    """The code of the error."""
    error: str = ""
    output: tuple[str, ...] = ()
    """The last lines that a failed command of the environment printed."""
    hint: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    may_have_changed: bool = False
    """Whether it has edited files or run commands."""
    entries: int = 0
    """Number of entries on the thread when the run ended."""
    of_session: bool = False
    """Whether the thread is a session, which goes on with a prompt."""


class RunLines:
    """Takes entries, oldest first, and returns the lines that each adds. `width` None is a pipe, where nothing is cut.

    `on_purpose` has the boxes that the caller killed itself, which the lines mention.
    """

    def __init__(self, *, width: int | None) -> None:
        self.width = width
        self.runs: dict[str, RunSeen] = {}
        self.boxes: list[str] = []
        self.entries = 0
        """Number of entries, without live text and heartbeats."""
        self.on_purpose: set[str] = set()
        self.thread = "THREAD"
        """The thread's id once it is known, for hints."""
        self.footer = "Ctrl-C leaves it running"
        """Text below the live lines."""
        self._latest: RunSeen | None = None
        self._waiting: dict[str, None] = {}
        """Ids of queued prompts, in order."""
        self._expected = ""
        self._prompts: list[str] = []
        self._noticed = ""
        """The text of the latest notice."""
        self._open: dict[str, tuple[ToolLine, int]] = {}
        self._text = ""
        self._thinking = ""
        self._announced_any = False
        self._is_session = False

    @property
    def latest(self) -> RunSeen | None:
        return self._latest

    @property
    def running(self) -> bool:
        """Whether a run is in progress or expected."""
        return bool(self._expected) or (self._latest is not None and not self._latest.status)

    @property
    def waiting(self) -> bool:
        """Whether a run is about to start for queued prompts. After a cancel they stay queued."""
        run = self._latest
        return bool(self._waiting) and run is not None and (run.status != "cancelled" or run.cancel == "interrupt")

    def expect(self, run: str = ANY) -> None:
        """Expect a run that was requested, whose entries are still to come."""
        self._expected = run

    def take(self, entry: Entry) -> list[Line]:
        """Return the permanent lines that an entry adds."""
        kind = entry.type
        family, _, name = kind.rpartition(".")
        self.entries += not is_passing(kind)
        self._is_session |= family == "signal.session"
        by_agent = bool(family) and not kind.startswith("signal.")
        if self._latest is not None:
            self._latest.last_entry_at = max(self._latest.last_entry_at, entry.ts)
            self._latest.has_runner |= by_agent or kind == "signal.run.heartbeat"
        if kind == "chat":
            return list(self._chat(entry))
        if family == "signal.run":
            return list(self._signal(name, entry))
        if family == "signal.model":
            return list(self._model(name, entry))
        if by_agent:
            return list(self._agent(name, entry))
        if family == "signal.session" and (said := changed(name, entry.payload)) is not None:
            return [self._remark("·", said, "dim")]
        return []

    def close(self) -> list[Line]:
        """Return the remaining lines, when no more entries will come."""
        lines = list(self._flush_prompts())
        if self._text.strip():
            lines += self._prose(self._text)
        self._text = self._thinking = ""
        return lines

    # --- live lines ---

    def silence(self, now: int) -> str:
        """How long the run has had no heartbeat; empty if that is not long, or if it has no runner yet."""
        run = self._latest
        return (
            ""
            if run is None or run.status or not run.has_runner
            else describe_silence((now - run.last_entry_at) / 1000)
        )

    def live(self, now: int, height: int) -> list[Line]:
        """The live lines at this moment (UTC milliseconds), at most `height`."""
        run = self._latest
        if run is None or run.status:
            return []
        lines: list[Line] = []
        if self._thinking and not self._text:
            last = plain(self._thinking).rstrip().rpartition("\n")[2]
            lines.append((Cell(f"{_INDENT}∴ ", "dim"), Cell(cut(last, self._room() - 2), "dim")))
        if self._text:
            lines += self._prose("\n".join(self._text.split("\n")[-height:])[-height * _WIDEST :])
        for line, began in list(self._open.values())[-max(1, height // 2) :]:
            lines.append(self._tool_line(line, now - began, running=True))
        doing = f"installing {run.installing}" if run.installing else _STAGES.get(run.stage, "working")
        status = f"  {doing} · {describe_time(max(0, now - run.began) // 1000 * 1000)} · {self.footer}"
        if silence := self.silence(now):
            status = f"  {silence} ·{status[1:]}"
        lines.append((Cell(cut(status, self._columns()), "dim"),))
        return lines[-max(height, 1) :]

    # --- prompts ---

    def _chat(self, entry: Entry) -> Iterator[Line]:
        payload = entry.payload
        text = _text(payload, "text")
        role = _text(payload, "role") or "user"
        if role != "user":
            yield from self._quote(f"{one_line(role)}: {text}")
        elif payload.get("interrupt") is True:
            self._waiting[entry.id] = None
            yield from self._quote(f"{text}  (interrupts)")
        elif payload.get("quiet") is True:
            yield from self._quote(text)  # a result that waits for the next prompt
        elif payload.get("queued") is True:
            self._waiting[entry.id] = None
            yield from self._quote(f"{text}  (queued)")
        else:
            self._prompts.append(text)

    def _flush_prompts(self) -> Iterator[Line]:
        prompts, self._prompts = self._prompts, []
        for text in prompts:
            yield from self._quote(text)

    def _quote(self, text: str) -> Iterator[Line]:
        lines = list(self._wrapped(plain(text).strip(), 4))
        for index, line in enumerate(lines):
            yield (Cell("  > " if index == 0 else "    ", ACCENT), Cell(line, "bold"))

    # --- signals of Holdfast ---

    def _signal(self, name: str, entry: Entry) -> Iterator[Line]:
        payload = entry.payload
        run = self._run_of(payload, entry)
        if name == "started":
            run.agent, run.version = _word(payload, "agent"), _word(payload, "version")
            run.model, run.resumes = _word(payload, "model"), _word(payload, "resumes")
            run.provider = _word(payload, "provider")
            prompts = payload.get("prompts")
            for prompt in prompts if isinstance(prompts, list) else ():
                if isinstance(prompt, str):
                    self._waiting.pop(prompt, None)
            if self._expected in (run.id, ANY):
                self._expected = ""
        elif name == "box":
            run.box, run.files = _word(payload, "box"), _word(payload, "files")
            run.provider = _word(payload, "provider") or run.provider
            run.isolation, run.box_ms = _word(payload, "isolation"), _number(payload, "ms")
            run.stage = "box"
            if run.box and run.box not in self.boxes:
                self.boxes.append(run.box)
        elif name == "installing":
            yield from self._installing(run, _word(payload, "what"), _number(payload, "ms"))
        elif name == "environment":
            yield from self._environment(payload)
        elif name == "setup":
            yield from self._setup(run, payload)
        elif name == "services":
            yield from self._services(payload)
        elif name == "model_trouble":
            run.trouble = one_line(_text(payload, "message"))
        elif name == "provisioned":
            run.installing = ""
            run.session, run.stage = _word(payload, "session"), "provisioned"
            run.version = _word(payload, "version") or run.version
            yield from self._announce(run)
        elif name == "runner":
            run.stage = "runner"
        elif name == "cancel_requested":
            if payload.get("interrupt") is True:
                run.cancel = run.cancel or "interrupt"
            else:
                run.cancel = "cancel"
                yield (Cell("  ■ cancelling", "yellow"),)
        elif name == "finished":
            yield from self._finished(run, payload, entry.ts)

    def _model(self, name: str, entry: Entry) -> Iterator[Line]:
        payload = entry.payload
        run = self.runs.get(_word(payload, "run"))
        if run is None:
            return
        if name == "call":
            if (cost := _number(payload, "cost")) is not None:
                run.counted = (run.counted or 0.0) + cost
            else:
                run.unpriced += 1
        elif name == "failover":
            yield from self._announce(run)
            model, to = _word(payload, "model"), _word(payload, "to")
            why = FAILOVERS.get(_word(payload, "reason"), "gave no answer")
            yield self._remark("⇄", f"{model} {why}: {f'going on with {to}' if to else 'no other is left'}", "yellow")
        elif name == "budget":
            yield from self._announce(run)
            limit, spent = _number(payload, "limit"), _number(payload, "spent")
            if limit is not None and spent is not None:
                show = describe_cost if _word(payload, "unit") == "cost" else _tokens
                is_reached = _word(payload, "state") == "reached" or spent >= limit
                state = "is used up" if is_reached else "is nearly used up"
                text = f"the budget of this {_word(payload, 'scope')} {state}: {show(spent)} of {show(limit)}"
                run.is_over_budget = run.is_over_budget or is_reached
                if text != run.budget:  # a warning that comes late says what the end of the budget says again
                    run.budget = text
                    yield self._remark("!", text, "yellow")

    def _installing(self, run: RunSeen, what: str, ms: float | None) -> Iterator[Line]:
        """An agent is installed when it is first used on a machine, which takes a while."""
        run.installing = what if ms is None else ""
        if ms is not None:
            yield (Cell(f"  {'installed'.ljust(LABEL_WIDTH)}"), Cell(what), Cell(f"  {describe_time(ms)}", "dim"))
        elif self.width is None:  # a pipe has no live lines to show this
            yield (Cell(f"  {'installing'.ljust(LABEL_WIDTH)}"), Cell(what))

    def _environment(self, payload: Mapping[str, Any]) -> Iterator[Line]:
        warnings = payload.get("warnings")
        for warning in warnings[:_MOST_WARNINGS] if isinstance(warnings, list) else ():
            if isinstance(warning, str):
                yield (Cell(f"  {'careful'.ljust(LABEL_WIDTH)}", "yellow"), Cell(one_line(warning)))

    def _services(self, payload: Mapping[str, Any]) -> Iterator[Line]:
        services, ms = payload.get("services"), _number(payload, "ms")
        if isinstance(services, dict):
            names = cut(one_line(", ".join(map(str, services))), _LONGEST_WORD)
            took = "" if ms is None else f"  {describe_time(ms)}"
            yield (Cell(f"  {'services'.ljust(LABEL_WIDTH)}"), Cell(names), Cell(took, "dim"))

    def _setup(self, run: RunSeen, payload: Mapping[str, Any]) -> Iterator[Line]:
        """A setup is built when an environment is first used, which takes a while."""
        what, ms = _word(payload, "environment"), _number(payload, "ms")
        run.installing = f"the setup of {what}" if ms is None else ""
        if ms is not None:
            how = "built" if payload.get("built") is True else "built before"
            yield (Cell(f"  {'setup'.ljust(LABEL_WIDTH)}"), Cell(what), Cell(f"  {how}  {describe_time(ms)}", "dim"))
        elif self.width is None:
            yield (Cell(f"  {'setup'.ljust(LABEL_WIDTH)}"), Cell(what), Cell("  is being built", "dim"))

    def _run_of(self, payload: Mapping[str, Any], entry: Entry) -> RunSeen:
        id = _word(payload, "run")
        run = self.runs.get(id)
        if run is None:
            run = self.runs[id] = RunSeen(id, entry.ts)
            self._latest = run
            self._open.clear()
        return run

    def _announce(self, run: RunSeen) -> Iterator[Line]:
        """Print once per run its box, prompts and agent."""
        if run.announced:
            return
        run.announced = True
        took = "" if run.box_ms is None else describe_time(run.box_ms)
        if self._continues(run):
            parts = [f"resumed in box {run.box}" if run.box else "resumed"]
            by = f" to {run.agent}" if run.session == "handed-over" else ""
            parts += filter(None, (_SESSIONS.get(run.session, "") + by, _FILES.get(run.files, "")))
            fits = self.width is None or width_of(", ".join(parts)) <= self._columns() - 4 - _TIME
            yield self._across(Cell("  ↻ ", ACCENT), ", ".join(parts if fits else parts[:-1]), took)
            if not fits:
                yield (Cell(f"{_INDENT}{parts[-1]}", "dim"),)
            yield from self._flush_prompts()
            return
        if run.box:
            kind = f"{run.provider} ({run.isolation})" if run.isolation else run.provider
            label = f"  {'box'.ljust(LABEL_WIDTH)}"
            yield (Cell(label), Cell(run.box, "bold"), Cell(f" {kind}"), Cell(f"  {took}", "dim"))
        if self._announced_any or run.box:
            yield ()
        yield from self._flush_prompts()
        who = " ".join(filter(None, (run.agent or "agent", run.version)))
        session = _SESSIONS.get(run.session, "")
        yield (
            Cell("  ● ", ACCENT), Cell(" · ".join(filter(None, (who, run.model))), "bold"),
            Cell(f"  {session}" if session else "", "dim"),
        )  # fmt: skip
        self._announced_any = True

    def _finished(self, run: RunSeen, payload: Mapping[str, Any], ts: int) -> Iterator[Line]:
        yield from self._announce(run)
        yield from self.close()
        run.status = _word(payload, "status") or "failed"
        usage = payload.get("usage")
        run.usage = usage if isinstance(usage, Mapping) else {}
        if (cost := _number(run.usage, "cost")) is not None:
            run.cost = cost
        run.of_session = self._is_session
        error = payload.get("error")
        if isinstance(error, Mapping):
            run.code = _word(error, "code")
            message = _text(error, "message")
            run.error, run.hint = one_line(message), one_line(_text(error, "hint"))
            if run.of_session:
                run.hint = hint_for_session(run.hint)
            if run.code in _WITH_OUTPUT:
                run.error, *output = lines_of(message) or [""]
                run.output = tuple(output[-_MOST_OUTPUT:])
        self._open.clear()
        run.entries = self.entries
        took = describe_time(ts - self._chain_began(run))
        if run.status == "completed":
            yield (Cell(f"  ✓ completed in {took}", "green"), Cell("".join(f" · {each}" for each in self.tally())))
        elif run.status == "cancelled":
            how = "interrupted" if run.cancel == "interrupt" else "cancelled"
            yield (Cell(f"  ■ {how} after {took}", "yellow"), Cell("".join(f" · {each}" for each in self.tally())))
        elif run.status == "orphaned":
            if run.box in self.on_purpose:
                what = f"box {run.box} killed (on purpose)"
            elif run.box and run.code in _BOX_LOST:
                what = f"box {run.box} {_BOX_LOST[run.code]}"
            else:
                what = f"the run in box {run.box} was lost" if run.box else "the run was lost before it had a box"
            yield (
                Cell(f"  ✗ {what}", "red"),
                Cell(f"  {_count(self.entries, 'entry', 'entries')} are safe on the thread"),
            )
            said = run.box and (run.box in self.on_purpose or run.code in _BOX_LOST)
            if run.error and not said:
                yield from self._error_lines(run)
        else:
            yield (Cell(f"  ✗ {run.status} after {took}", "red"), Cell("".join(f" · {each}" for each in self.tally())))
            yield from self._error_lines(run)

    def _error_lines(self, run: RunSeen) -> Iterator[Line]:
        is_said = run.error == self._noticed or (run.is_over_budget and is_out_of_budget(run.error))
        error = "" if is_said else run.error  # by the agent, or above
        for text, style in ((error, ""), *((line, "dim") for line in run.output), (as_called(run.hint), "")):
            for line in self._wrapped(text, 4) if text else ():
                yield (Cell(_INDENT), Cell(line, style))

    def _continues(self, run: RunSeen) -> bool:
        """Returns whether the run continues unfinished work, rather than following a completed run."""
        before = self.runs.get(run.resumes)
        return bool(run.resumes) and (before is None or before.status != "completed")

    def _chain_began(self, run: RunSeen) -> int:
        """When the work began that this run continues."""
        seen = {run.id}
        while self._continues(run) and run.resumes in self.runs and run.resumes not in seen:
            run = self.runs[run.resumes]
            seen.add(run.id)
        return run.began

    def tally(self) -> list[str]:
        """Boxes, entries and cost of all runs."""
        runs = self.runs.values()
        # An agent that does not know a price says 0.
        known = [run.cost or None if run.counted is None and not run.unpriced else run.counted for run in runs]
        costs = [cost for cost in known if cost is not None]
        unpriced = sum(run.unpriced for run in runs)
        spent = describe_in_full(sum(costs), unpriced) if any(costs) or not unpriced else "cost unknown"
        return [
            _count(len(self.boxes), "box", "boxes"),
            _count(self.entries, "entry", "entries"),
            *([spent] if costs or unpriced else []),
        ]

    # --- entries of the agent ---

    def _agent(self, name: str, entry: Entry) -> Iterator[Line]:
        payload = entry.payload
        run = self._latest
        if run is not None and not run.status:
            run.stage = "" if name in ("assistant", "call", "tool", "delta") else run.stage
            yield from self._announce(run)
        if name == "delta":
            self._text = (self._text + _text(payload, "text"))[-_LIVE_TEXT:]
            self._thinking = (self._thinking + _text(payload, "thinking"))[-_LIVE_TEXT:]
        elif name == "assistant":
            yield from self._assistant(payload, run)
        elif name == "call":
            if len(self._open) < _OPEN_CALLS:
                self._open[_word(payload, "call")] = (
                    describe_call(_text(payload, "name"), payload.get("arguments")), entry.ts,
                )  # fmt: skip
        elif name == "tool":
            if run is not None and payload.get("status") == "error":
                run.missing = find_missing(_text(payload, "result")) or run.missing
            yield self._tool(payload, entry.ts, run)
        elif name in ("retry", "notice") and self._is_said(payload, run):
            pass
        elif name == "retry":
            attempt = _number(payload, "attempt")
            number = f" ({attempt:g})" if attempt is not None else ""
            yield self._remark("⟳", f"retrying{number}: {self._reason(payload, run)}", "yellow")
        elif name == "question":
            question = asked(payload)
            yield self._remark("?", question, "yellow")
            yield self._remark(" ", f"holdfast session answer SESSION {_word(payload, 'question')} ANSWER", "dim")
        elif name == "answer":
            yield self._remark("?", answered(payload), "dim")
        elif name == "compaction":
            yield self._remark("≡", f"context summarised: {one_line(_text(payload, 'summary'))}", "dim")
        elif name == "notice":
            serious = _text(payload, "level") in ("warning", "error")
            self._noticed = one_line(_text(payload, "text"))
            yield self._remark("!" if serious else "i", self._noticed, "yellow" if serious else "dim")

    def _is_said(self, payload: Mapping[str, Any], run: RunSeen | None) -> bool:
        """Returns whether an agent repeats that the budget is used up, which the server has said."""
        said = _text(payload, "text") or _text(payload, "message")
        return run is not None and run.is_over_budget and is_out_of_budget(said)

    def _reason(self, payload: Mapping[str, Any], run: RunSeen | None) -> str:
        """Why an agent retries. Some give only one word; if the answer was our gateway's, we know more."""
        message = one_line(_text(payload, "message"))
        by_us = _number(payload, "status") in _OWN_STATUSES
        return run.trouble if run is not None and run.trouble and by_us and " " not in message else message

    def _assistant(self, payload: Mapping[str, Any], run: RunSeen | None) -> Iterator[Line]:
        self._text = self._thinking = ""
        usage = payload.get("usage")
        cost = _number(usage, "cost") if isinstance(usage, Mapping) else None
        if run is not None and cost is not None:
            run.cost = (run.cost or 0.0) + cost
        if thinking := _text(payload, "thinking").strip():
            lines = plain(thinking).strip().split("\n")
            more = f"  ({len(lines)} lines)" if len(lines) > 1 else ""
            first = lines[0] if self.width is None else cut(lines[0], self._room() - 2 - len(more))
            yield (Cell(f"{_INDENT}∴ {first}{more}", "dim"),)
        text = _text(payload, "text").strip()
        if text:
            yield from self._prose(text)
        if payload.get("partial") is True and text:
            yield (Cell(f"{_INDENT}… cut off here", "dim"),)

    def _tool(self, payload: Mapping[str, Any], ts: int, run: RunSeen | None) -> Line:
        status = _text(payload, "status")
        line = describe_tool(_text(payload, "name"), payload.get("arguments"), payload.get("result"), status)
        if run is not None and line.mark in ("$", "✎"):
            run.may_have_changed = True
        _, began = self._open.pop(_word(payload, "call"), (None, None))
        took = _number(payload, "ms")
        if took is None and began is not None:
            took = ts - began
        return self._tool_line(line, took, failed=status in ("error", "interrupted"))

    # --- layout ---

    def _prose(self, text: str) -> list[Line]:
        return [(Cell(_INDENT), Cell(line)) for line in self._wrapped(plain(text).strip("\n").rstrip(), len(_INDENT))]

    def _wrapped(self, text: str, indent: int) -> Iterator[str]:
        if self.width is None:
            yield from text.split("\n")
        else:
            yield from wrap(text, self._columns() - indent)

    def _remark(self, mark: str, text: str, style: str) -> Line:
        return (
            Cell(f"{_INDENT}{mark} ", style),
            Cell(text if self.width is None else cut(text, self._room() - 2), style),
        )

    def _tool_line(
        self, line: ToolLine, milliseconds: float | None, *, failed: bool = False, running: bool = False
    ) -> Line:
        """A tool call in columns: what, result, duration. Long columns are cut, the result last."""
        took = "" if milliseconds is None else describe_time(milliseconds)
        result = "…" if running else line.result
        changes = []
        if line.added is not None:
            changes.append(Cell(f"  +{line.added}", "green"))
        if line.removed is not None:
            changes.append(Cell(f" −{line.removed}" if changes else f"  −{line.removed}", "red"))
        if failed:
            result = f"✗ {result}".rstrip()
        what = line.what
        if line.mark == "✎" and not failed and not running:
            room = self._room() - 2 - sum(width_of(each.text) for each in changes)
            shown = what if self.width is None else cut(what, room)
            return (Cell(f"{_INDENT}✎ ", ACCENT), Cell(shown), *changes)
        if self.width is None:
            widths = (_WHAT, _RESULT)
        else:
            room = self._room() - 2 - _TIME - 2
            if room < _NARROW:
                text = cut(f"{what}  {result}", self._room() - 2)
                return (Cell(f"{_INDENT}{line.mark} ", "dim"), Cell(text, "red" if failed else ""))
            for_result = min(max(width_of(result), _RESULT), max(_RESULT, room - width_of(what)), room - 12)
            widths = (room - for_result, for_result)
            what, result = cut(what, widths[0]), cut(result, widths[1])
        return (
            Cell(f"{_INDENT}{line.mark} ", "dim"), Cell(pad(what, widths[0])), Cell("  "),
            Cell(pad(result, widths[1]), "red" if failed else "dim" if running else ""), Cell(took.rjust(_TIME), "dim"),
        )  # fmt: skip

    def _across(self, mark: Cell, text: str, right: str) -> Line:
        if self.width is None:
            return (mark, Cell(text), Cell(f"  {right}" if right else ""))
        room = self._columns() - width_of(mark.text) - _TIME
        return (mark, Cell(pad(cut(text, room), room)), Cell(right.rjust(_TIME), "dim"))

    def _columns(self) -> int:
        return _WIDEST if self.width is None else max(24, min(self.width, _WIDEST) - 1)

    def _room(self) -> int:
        return self._columns() - len(_INDENT)


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def _word(payload: Mapping[str, Any], name: str) -> str:
    return cut(one_line(_text(payload, name)[:_LONGEST_WORD]), _LONGEST_WORD)


def _number(payload: Mapping[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError, ValueError):
        return float(value) if -1e15 < value < 1e15 else None
    return None


def _tokens(number: float) -> str:
    return f"{number:,.0f} tokens"


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many}"
