// The list of threads: their state in a word and a shape, and the tree of forks and children. Pure.

import type { ThreadInfo } from "../api/types.ts";
import { firstLine } from "./text.ts";

export type ThreadState = "working" | "needs you" | "done" | "failed" | "stopped" | "asleep" | "idle";
export const SHAPES: Record<ThreadState, string> = {
  "working": "●", "needs you": "◆", "done": "✓", "failed": "✗", "stopped": "■", "asleep": "☾", "idle": "○",
};

/** `asleep` are the threads whose box sleeps, and `asking` those that wait for an answer. */
export function stateOf(thread: ThreadInfo, asleep: ReadonlySet<string> = new Set(), asking: ReadonlySet<string> = new Set()): ThreadState {
  const run = thread.run;
  if (asking.has(thread.id)) return "needs you";
  if (thread.status === "running") return "working";
  if (run && run.waiting > 0) return "needs you"; // prompts wait, and nothing works on them
  if (thread.status === "failed") return run?.needsYou ? "needs you" : "failed";
  if (thread.status === "cancelled") return "stopped";
  if (asleep.has(thread.id)) return "asleep";
  return thread.status === "completed" ? "done" : "idle";
}

export const titleOf = (thread: ThreadInfo): string => firstLine(thread.title ?? thread.lastEntry?.text ?? "") || thread.id;
export const isPinned = (thread: ThreadInfo): boolean => thread.labels.pinned === "true";

export interface Branch { thread: ThreadInfo; how: "root" | "fork" | "child"; children: Branch[] }

/** Whether something below a thread waits for an answer. Then it is not folded away. */
export const asksBelow = (branch: Branch, asking: ReadonlySet<string>): boolean =>
  branch.children.some((each) => asking.has(each.thread.id) || asksBelow(each, asking));

/** Threads as trees, in their order. A thread whose source or parent is not among them is a root. Cycles end at the first. */
export function treeOf(threads: readonly ThreadInfo[]): Branch[] {
  const branches = new Map<string, Branch>(threads.map((thread) => [thread.id, { thread, how: "root", children: [] }]));
  const roots: Branch[] = [];
  const parentOf = (thread: ThreadInfo): string | null => thread.parent ?? thread.forkOf?.thread ?? null;
  for (const branch of branches.values()) {
    const parent = parentOf(branch.thread);
    const above = parent === null ? undefined : branches.get(parent);
    if (!above || leadsTo(branch.thread.id, above, branches, parentOf)) {
      roots.push(branch);
      continue;
    }
    branch.how = branch.thread.parent === parent ? "child" : "fork";
    above.children.push(branch);
  }
  return roots.sort((a, b) => Number(isPinned(b.thread)) - Number(isPinned(a.thread)));
}

function leadsTo(id: string, from: Branch, branches: Map<string, Branch>, parentOf: (thread: ThreadInfo) => string | null): boolean {
  const seen = new Set<string>();
  for (let at: Branch | undefined = from; at && !seen.has(at.thread.id);) {
    if (at.thread.id === id) return true;
    seen.add(at.thread.id);
    const parent = parentOf(at.thread);
    at = parent === null ? undefined : branches.get(parent);
  }
  return false;
}

/** Threads that have all words of a search in their title, id, agent, model or last words. */
export function search(threads: readonly ThreadInfo[], wanted: string): ThreadInfo[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [...threads];
  return threads.filter((thread) => {
    const haystack = [thread.title, thread.id, thread.run?.agent, thread.run?.model, thread.lastEntry?.text, thread.status, ...Object.values(thread.labels)]
      .filter(Boolean).join("\n").toLowerCase();
    return words.every((word) => haystack.includes(word));
  });
}
