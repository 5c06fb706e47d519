import assert from "node:assert/strict";
import { test } from "node:test";
import type { Item } from "./items.ts";
import { Timeline } from "./timeline.ts";
import { describeCall } from "./tools.ts";

const BEGAN = 1_790_000_000_000;

function told(...entries: [string, Record<string, unknown>?, number?][]): Timeline {
  const timeline = new Timeline();
  entries.forEach(([type, rest, after], index) => timeline.take({ id: `e-${index}`, ts: BEGAN + (after ?? index * 50), payload: { type, ...rest } }));
  return timeline;
}

const kinds = (timeline: Timeline): string[] => [...timeline.items()].map((item) => item.kind);
const first = <K extends Item["kind"]>(timeline: Timeline, kind: K): Extract<Item, { kind: K }> => {
  const found = [...timeline.items()].find((item) => item.kind === kind);
  assert.ok(found, `there is no ${kind}`);
  return found as Extract<Item, { kind: K }>;
};

test("live text is replaced by the complete message in place", () => {
  const timeline = told(["signal.run.started", { run: "r-1", agent: "pi" }], ["pi.delta", { text: "I will " }], ["pi.delta", { text: "look." }]);
  const live = first(timeline, "prose");
  assert.equal(live.text, "I will look.");
  assert.equal(live.live, true);
  timeline.take({ id: "x", ts: BEGAN + 900, payload: { type: "pi.assistant", text: "I will look. Now.", thinking: "hm" } });
  const prose = first(timeline, "prose");
  assert.equal(prose.key, live.key);
  assert.equal(prose.text, "I will look. Now.");
  assert.equal(prose.live, false);
  assert.deepEqual(kinds(timeline), ["who", "thinking", "prose"]);
});

test("an entry that is taken twice is shown once", () => {
  const timeline = told(["chat", { text: "one" }]);
  timeline.take({ id: "e-0", ts: BEGAN, payload: { type: "chat", text: "one" } });
  assert.deepEqual(kinds(timeline), ["prompt"]);
  assert.equal(timeline.entries, 1);
});

test("a chunk without a change is the same object in the next snapshot", () => {
  const timeline = told(["signal.run.started", { run: "r-1" }], ...Array.from({ length: 100 }, (_, n): [string, Record<string, unknown>] => ["pi.assistant", { text: `m ${n}` }]));
  const before = timeline.snapshot();
  timeline.take({ id: "new", ts: BEGAN + 99_999, payload: { type: "pi.assistant", text: "more" } });
  const after = timeline.snapshot();
  assert.equal(after[0], before[0]);
  assert.notEqual(after.at(-1), before.at(-1));
});

test("what died and how it went on are marks, above the prompts of the next run", () => {
  const timeline = told(
    ["chat", { text: "Go." }],
    ["signal.run.started", { run: "r-1", agent: "pi" }],
    ["signal.run.box", { run: "r-1", box: "b-1", ms: 38 }],
    ["pi.assistant", { text: "Working." }],
    ["signal.run.finished", { run: "r-1", status: "orphaned", error: { code: "box_gone", message: "gone" } }],
    ["chat", { text: "Go on." }],
    ["signal.run.started", { run: "r-2", resumes: "r-1" }],
    ["signal.run.box", { run: "r-2", box: "b-2", files: "snapshot", ms: 41 }],
    ["signal.run.provisioned", { run: "r-2", session: "rebuilt" }],
    ["signal.run.finished", { run: "r-2", status: "completed" }],
  );
  const marks = [...timeline.items()].filter((item) => item.kind === "mark");
  assert.deepEqual(marks.map((item) => item.style), ["lost", "resumed", "completed"]);
  assert.deepEqual(kinds(timeline), ["prompt", "who", "prose", "mark", "mark", "prompt", "mark"]);
  assert.deepEqual(marks[1]?.details, ["session rebuilt from the thread", "files kept by a snapshot", "41 ms"]);
  assert.equal(timeline.status, "completed");
});

test("a rewind takes turns out of the conversation, and its undo brings them back", () => {
  const run = (id: string): [string, Record<string, unknown>][] => [["chat", { text: id }], ["signal.run.started", { run: id }], ["signal.run.finished", { run: id, status: "completed" }]];
  const timeline = told(...run("r-1"), ...run("r-2"), ...run("r-3"), ["signal.thread.rewound", { turn: 1, undo: {} }]);
  assert.deepEqual([...timeline.rewound], [2, 3]);
  assert.equal(timeline.canUndo, true);
  timeline.take({ id: "u", ts: BEGAN + 9999, payload: { type: "signal.thread.rewound", turn: 3, undoes: true, undo: null } });
  assert.deepEqual([...timeline.rewound], []);
});

test("prompts belong to the turn that they begin", () => {
  const timeline = told(
    ["chat", { text: "one" }], ["signal.run.started", { run: "r-1" }], ["pi.assistant", { text: "a" }], ["signal.run.finished", { run: "r-1", status: "completed" }],
    ["chat", { text: "two" }], ["signal.run.started", { run: "r-2", resumes: "r-1" }], ["pi.assistant", { text: "b" }],
  );
  assert.deepEqual([...timeline.items()].map((item) => [item.kind, item.turn]), [
    ["prompt", 1], ["who", 1], ["prose", 1], ["mark", 1], ["prompt", 2], ["who", 2], ["prose", 2],
  ]);
});

test("queued prompts wait until a run takes them", () => {
  const timeline = told(["signal.run.started", { run: "r-1" }], ["chat", { text: "later", queued: true }]);
  assert.deepEqual([...timeline.waiting.values()], ["later"]);
  timeline.take({ id: "s", ts: BEGAN + 999, payload: { type: "signal.run.started", run: "r-2", prompts: ["e-1"] } });
  assert.equal(timeline.waiting.size, 0);
  assert.equal(first(timeline, "prompt").turn, 2);
  assert.equal(first(timeline, "prompt").tag, "");
});

test("a prompt of a session is labelled as queued until a run takes it, or the session ends", () => {
  const prompt = { mode: "followup", priority: 0 };
  const timeline = told(["signal.session.created", {}], ["chat", { text: "one", prompt }], ["chat", { text: "two", prompt }]);
  const tags = (): string[] => [...timeline.items()].flatMap((item) => (item.kind === "prompt" ? [item.tag] : []));
  assert.deepEqual(tags(), ["queued", "queued"]);
  timeline.take({ id: "s", ts: BEGAN + 999, payload: { type: "signal.run.started", run: "r-1", prompts: ["e-1"] } });
  assert.deepEqual(tags(), ["", "queued"]);
  timeline.take({ id: "t", ts: BEGAN + 1000, payload: { type: "signal.session.terminated" } });
  assert.deepEqual(tags(), ["", "cancelled"]);
  assert.equal(timeline.waiting.size, 0);
});

test("a question waits for an answer, and no longer than its run", () => {
  const ask = (question: string): [string, Record<string, unknown>] => ["opencode.question", { question, kind: "permission", text: "May it use bash: ls?", options: ["once", "always", "reject"] }];
  const timeline = told(["signal.run.started", { run: "r-1" }], ask("per_1"), ask("per_2"), ask("per_3"));
  const answers = (): (string | null)[] => [...timeline.items()].flatMap((item) => (item.kind === "question" ? [item.answer] : []));
  timeline.take({ id: "a", ts: BEGAN, payload: { type: "opencode.answer", question: "per_1", answer: "once" } });
  timeline.take({ id: "b", ts: BEGAN, payload: { type: "opencode.answer", question: "per_2", answer: "__expired__" } });
  assert.deepEqual(answers(), ["once", "nobody answered in time", null]);
  timeline.take({ id: "f", ts: BEGAN, payload: { type: "signal.run.finished", run: "r-1", status: "cancelled" } });
  assert.deepEqual(answers(), ["once", "nobody answered in time", "not answered"]);
});

test("a prompt that waits does not cut the message that is being said", () => {
  const timeline = told(["signal.run.started", { run: "r-1" }], ["pi.delta", { text: "I will " }], ["chat", { text: "later", queued: true }], ["pi.delta", { text: "look." }], ["pi.assistant", { text: "I will look." }]);
  assert.deepEqual(kinds(timeline), ["who", "prose", "prompt"]);
  assert.equal(first(timeline, "prose").text, "I will look.");
});

test("a call without a price is not free", () => {
  const timeline = told(["signal.run.started", { run: "r-1" }], ["pi.assistant", { text: "x", usage: { cost: 0 } }], ["signal.model.call", { run: "r-1", cost: null }]);
  assert.equal(timeline.cost, "unknown");
  timeline.take({ id: "c", ts: BEGAN + 999, payload: { type: "signal.model.call", run: "r-1", cost: 1.5, input: 10, cache_read: 5, output: 1 } });
  assert.equal(timeline.cost, "at least $1.50");
  assert.equal(timeline.context, 16);
});

test("plans of several agents are read by their shape", () => {
  const timeline = told(["signal.run.started", { run: "r-1" }], ["x.tool", { call: 1, name: "TodoWrite", arguments: { todos: [{ content: "a", status: "completed" }, { content: "b", status: "in_progress" }] }, status: "ok" }]);
  assert.deepEqual(timeline.todos, [{ text: "a", state: "done" }, { text: "b", state: "doing" }]);
  timeline.take({ id: "p", ts: BEGAN + 999, payload: { type: "y.tool", call: 2, name: "update_plan", arguments: { plan: [{ step: "c", status: "pending" }] }, status: "ok" } });
  assert.deepEqual(timeline.todos, [{ text: "c", state: "open" }]);
});

test("what a sub-agent does is inside the call that started it", () => {
  const record = (type: string, content: unknown): [string, Record<string, unknown>] => ["claude.event", { record: { type, parent_tool_use_id: "toolu_1", message: { content } } }];
  const timeline = told(
    ["signal.run.started", { run: "r-1" }],
    ["claude.call", { call: "toolu_1", name: "Task", arguments: { description: "Find the callers", prompt: "Search for parse().", subagent_type: "Explore" } }],
    record("assistant", [{ type: "text", text: "I will search." }, { type: "tool_use", id: "x", name: "Grep", input: { pattern: "parse" } }]),
    record("user", [{ type: "tool_result", tool_use_id: "x", content: [{ type: "text", text: "load.py:3\ncli.py:12" }] }]),
    ["claude.tool", { call: "toolu_1", name: "Task", status: "ok", result: "Two callers." }],
    record("assistant", [{ type: "tool_use", id: "y", name: "Read", input: { file_path: "late.py" } }]),
  );
  assert.deepEqual(kinds(timeline), ["who", "tool"]);
  const tool = first(timeline, "tool");
  assert.equal(tool.call.what, "Explore: Find the callers");
  assert.deepEqual(tool.steps.map((each) => [each.icon, each.what, each.result]), [["", "I will search.", ""], ["·", "Grep parse", "2 lines"], ["·", "Read late.py", "…"]]);
  assert.equal(describeCall("spawn_agent", { message: "Look at the tests." }).isAgent, true);
  assert.equal(describeCall("notify", { message: "It is done." }).isAgent, false);
});

test("an execution of an interpreter is one cell, with its calls", () => {
  const timeline = told(
    ["interpreter.execution", { id: "x1", code: "1 / 0" }],
    ["interpreter.call", { execution: "x1", name: "price_of", status: "ok", seconds: 0.1 }],
    ["interpreter.execution", { id: "x1", code: "1 / 0", ok: false, stdout: "hi", error: { kind: "ZeroDivisionError", traceback: "Traceback…" }, seconds: 0.2 }],
  );
  const cell = first(timeline, "cell");
  assert.equal(cell.running, false);
  assert.equal(cell.error, "Traceback…");
  assert.equal(cell.calls.length, 1);
  assert.deepEqual(kinds(timeline), ["cell"]);
});

test("hostile entries change no prototype and throw nothing", () => {
  const evil = ["__proto__", "constructor", ["x"], { a: 1 }, null, 7, "\u001b]0;x\u0007\u202e<img>", -1e308];
  const types = ["chat", "signal.run.started", "signal.run.box", "signal.run.finished", "signal.thread.rewound", "signal.thread.checkpoint",
    "signal.thread.child_started", "signal.model.call", "signal.model.budget", "pi.call", "pi.tool", "pi.assistant", "pi.delta", "pi.retry", "pi.notice",
    "interpreter.execution", "interpreter.call", "signal.gateway.tunnel", "signal.x.y", ".", ""];
  const timeline = new Timeline();
  for (const type of types) {
    for (const value of evil) {
      const payload: Record<string, unknown> = { type };
      for (const name of ["run", "box", "text", "name", "arguments", "call", "result", "status", "error", "usage", "turn", "child", "id", "execution", "tunnel",
        "artifacts", "prompts", "undo", "spent", "limit", "thinking", "prompt", "level", "ms"]) payload[name] = value;
      timeline.take({ id: `${type}${String(value)}`, ts: value as number, payload });
      timeline.take({ id: value as string, ts: BEGAN, payload: value as Record<string, unknown> });
    }
  }
  timeline.snapshot();
  assert.equal(({} as Record<string, unknown>).text, undefined);
  // What is shown as it is has no control characters: prose, output and arguments are cleaned where they are drawn.
  const raw = new Set(["id", "entry", "run", "code", "given", "output", "stdout", "stderr", "error", "full", "diff"]);
  for (const item of timeline.items()) {
    JSON.stringify(item, (name, value: unknown) => {
      if (raw.has(name) || (name === "text" && item.kind === "prose")) return undefined;
      // eslint-disable-next-line no-control-regex
      if (typeof value === "string") assert.ok(!/[\x00-\x08\x1b\u202e]/.test(value), `${item.kind}.${name}: ${JSON.stringify(value)}`);
      return value;
    });
  }
});
