// One run, as its thread tells of it, and the words for what happens to it.

export const SESSIONS: Record<string, string> = {
  "continued": "session continued",
  "rebuilt": "session rebuilt from the thread",
  "handed-over": "the transcript handed over",
};
export const FILES: Record<string, string> = {
  "kept": "files kept", "snapshot": "files kept by a snapshot", "workspace": "files as at the start", "empty": "no files",
};
export const STAGES: Record<string, string> = {
  started: "getting a box", box: "preparing the agent", provisioned: "starting the agent",
  runner: "waiting for the agent’s first output",
};
export const BOX_LOST: Record<string, string> = { box_gone: "is gone", box_stopped: "was stopped or killed" };
export const ENDINGS: Record<string, string> = { completed: "✓", failed: "✗", cancelled: "■", orphaned: "✗" };

export interface Run {
  id: string;
  number: number;
  began: number;
  ended: number | null;
  agent: string;
  model: string;
  version: string;
  resumes: string;
  box: string;
  provider: string;
  isolation: string;
  files: string;
  session: string;
  environment: string;
  boxTook: number | null;
  stage: string;
  installing: string;
  status: string;
  code: string;
  cost: number | null;
  counted: number | null;
  unpriced: number;
  budget: string;
  announced: boolean;
  interrupted: boolean;
}

export type Status = "idle" | "running" | "waiting" | "completed" | "failed" | "cancelled" | "orphaned";
export const STATUSES = new Set<string>(["completed", "failed", "cancelled", "orphaned"]);

export function newRun(id: string, number: number, began: number): Run {
  return {
    id, number, began, ended: null, agent: "", model: "", version: "", resumes: "", box: "", provider: "", isolation: "", files: "",
    session: "", environment: "", boxTook: null, stage: "started", installing: "", status: "", code: "", cost: null, counted: null, unpriced: 0,
    budget: "", announced: false, interrupted: false,
  };
}
