// The words on a thread, as far as the page knows them: the same vocabulary as `holdfast.exports` and `holdfast thread`.

import type { Fields } from "./text.ts";

export interface Entry { id: string; ts: number; authorId?: string; payload: Fields }

/** Signals without news for a reader of the thread: `exports/marks.py` has the same list. */
const SILENT = new Set([
  "model.call", "run.heartbeat", "run.provisioned", "run.runner", "run.services", "run.setup", "thread.child_read", "thread.created",
  "thread.exported", "thread.labelled", "thread.reported", "thread.status_changed", "gateway.member", "gateway.revoked",
]);

export const FAILOVERS: Record<string, string> = {
  billing: "is not paid for",
  rate: "has too many requests",
  auth: "does not accept its key",
  unsupported: "does not take this request",
  empty: "gave an empty answer",
  unreachable: "cannot be reached",
};

const word = (payload: Fields, name: string): string => {
  const value = payload[name];
  return value === null || value === undefined ? "" : String(value).slice(0, 500);
};

/** What a signal says, or an empty string if that is nothing for people. A signal that is not known is shown by its name. */
export function describeSignal(name: string, payload: Fields): string {
  if (SILENT.has(name)) return "";
  switch (name) {
    case "thread.renamed": return `renamed to ${word(payload, "title")}`;
    case "thread.archived": return payload.archived === false ? "no longer archived" : "archived";
    case "thread.imported": return `imported from thread ${word(payload, "from")} of another home`;
    case "thread.delegated": return `a task of thread ${word(payload, "parent")}`;
    case "thread.task_refused": return `task refused: ${word(payload, "message")}`;
    case "run.environment": return `environment ${word(payload, "environment")}`;
    case "run.model_trouble": return word(payload, "message");
    case "session.created": return "session created";
    case "session.hibernated": return "asleep: wakes when you write";
    case "session.hibernating": return "going to sleep: its files are being saved";
    case "session.restoring": return "waking up";
    case "session.running": return "awake";
    case "session.error": return `the box of the session cannot be made: ${word(payload, "error")}`;
    case "session.terminated": return "the session is over";
    case "session.slow": return "the agent has not answered for two minutes";
    case "gateway.tunnel": {
      const tunnel = (payload.tunnel ?? {}) as Fields;
      return tunnel.port ? `port ${word(tunnel, "port")} is open as ${word(tunnel, "name")}` : "a tunnel was closed";
    }
  }
  return name.startsWith("session.") ? "" : name;
}
