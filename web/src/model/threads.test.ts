import assert from "node:assert/strict";
import { test } from "node:test";
import type { ThreadInfo } from "../api/types.ts";
import { search, stateOf, treeOf } from "./threads.ts";

const thread = (id: string, rest: Partial<ThreadInfo> = {}): ThreadInfo => ({
  id, title: id, status: "completed", parent: null, labels: {}, archived: false, entryCount: 1, createdAt: 0, lastActivityAt: 0, nextOffset: "0",
  lastEntry: null, run: null, forkOf: null, ...rest,
});

test("forks and children are below their source, and pinned threads come first", () => {
  const trees = treeOf([thread("a"), thread("b", { forkOf: { thread: "a", turn: 1 } }), thread("c", { parent: "b" }), thread("d", { labels: { pinned: "true" } })]);
  assert.deepEqual(trees.map((each) => each.thread.id), ["d", "a"]);
  assert.deepEqual(trees[1]?.children.map((each) => [each.thread.id, each.how]), [["b", "fork"]]);
  assert.deepEqual(trees[1]?.children[0]?.children.map((each) => [each.thread.id, each.how]), [["c", "child"]]);
});

test("a circle of parents loses no thread", () => {
  const trees = treeOf([thread("a", { parent: "b" }), thread("b", { parent: "a" })]);
  const all: string[] = [];
  const walk = (branches: typeof trees): void => branches.forEach((each) => { all.push(each.thread.id); walk(each.children); });
  walk(trees);
  assert.deepEqual(all.sort(), ["a", "b"]);
});

test("states are words: a failure that waits for a decision needs you", () => {
  const run = { waiting: 0, needsYou: true } as unknown as ThreadInfo["run"];
  assert.equal(stateOf(thread("a", { status: "failed", run })), "needs you");
  assert.equal(stateOf(thread("a", { status: "failed" })), "failed");
  assert.equal(stateOf(thread("a"), new Set(["a"])), "asleep");
  assert.equal(stateOf(thread("a", { status: "running" })), "working");
});

test("a search finds threads that have all its words", () => {
  const threads = [thread("t-1", { title: "Fix the flaky test" }), thread("t-2", { title: "Write docs" })];
  assert.deepEqual(search(threads, "test FLAKY").map((each) => each.id), ["t-1"]);
});
