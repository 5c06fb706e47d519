// An execution of a workflow, from the entries of its thread. Pure, and trusts no field: `sessions/workflows/execution.py` is the
// same fold, on the server.

import { type Fields, fields, firstLine, number, plain, sentence, text } from "./text.ts";

export type StepState = "pending" | "running" | "waiting" | "ok" | "failed";
export interface Step {
  id: string;
  type: string;
  /** Its prompt, command or tool, as it was defined. */
  what: string;
  items: string[];
  state: StepState;
  attempt: number;
  began: number | null;
  ended: number | null;
  output: string;
  error: string;
  by: string;
}
export interface Workflow {
  name: string;
  session: string;
  by: string;
  began: number;
  ended: number | null;
  status: "running" | "needs_approval" | "ok" | "failed" | "cancelled";
  error: string;
  steps: readonly Step[];
}

const MOST_STEPS = 50;
const ENDS = new Set(["ok", "failed", "cancelled"]);

/** Returns the execution after a signal of its thread. `name` is its type after `signal.workflow.`. */
export function foldWorkflow(before: Workflow | null, name: string, payload: Fields, ts: number): Workflow | null {
  if (!before) return name === "started" ? started(payload, ts) : null;
  if (before.ended !== null) return before;
  if (name === "finished") {
    const status = text(payload.status);
    return { ...before, status: (ENDS.has(status) ? status : "failed") as Workflow["status"], error: sentence(payload.error), ended: ts };
  }
  const id = text(payload.step);
  const step = before.steps.find((each) => each.id === id);
  if (!step) return before;
  const change = (fresh: Partial<Step>, status: Workflow["status"] = before.status): Workflow => ({
    ...before, status, steps: before.steps.map((each) => (each === step ? { ...each, ...fresh } : each)),
  });
  switch (name) {
    case "step_started": return change({ state: "running", attempt: number(payload.attempt) ?? 1, began: step.began ?? ts });
    case "approval": return change({ state: "waiting" }, "needs_approval");
    case "decided": {
      const approved = payload.approve === true;
      const by = firstLine(payload.by);
      return change({ state: approved ? "ok" : "failed", ended: ts, by, error: approved ? "" : sentence(payload.reason) || "denied" }, "running");
    }
    case "step_ended": return change({ state: payload.status === "ok" ? "ok" : "failed", ended: ts, output: text(payload.output), error: sentence(payload.error) });
  }
  return before;
}

function started(payload: Fields, ts: number): Workflow {
  const steps = fields(payload.definition).steps;
  return {
    name: firstLine(payload.name), session: firstLine(payload.session), by: firstLine(payload.by), began: ts, ended: null, status: "running", error: "",
    steps: (Array.isArray(steps) ? steps : []).slice(0, MOST_STEPS).map((each) => {
      const told = fields(each);
      const items = Array.isArray(told.items) ? told.items.slice(0, 50).map((item) => plain(item)) : [];
      return {
        id: firstLine(told.id), type: firstLine(told.type), what: plain(told.command ?? told.prompt ?? told.tool).trim(), items,
        state: "pending", attempt: 0, began: null, ended: null, output: "", error: "", by: "",
      };
    }),
  };
}
