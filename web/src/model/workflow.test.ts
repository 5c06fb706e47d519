import assert from "node:assert/strict";
import test from "node:test";
import { type Workflow, foldWorkflow } from "./workflow.ts";

const steps = [{ id: "build", type: "command", command: "make" }, { id: "gate", type: "approval", prompt: "Publish?", items: ["a", "b"] }];

function told(...signals: [string, Record<string, unknown>][]): Workflow | null {
  let found: Workflow | null = null;
  let ts = 1000;
  for (const [name, payload] of signals) found = foldWorkflow(found, name, payload, (ts += 1000));
  return found;
}

test("an execution waits for a decision, and goes on with it", () => {
  const begun: [string, Record<string, unknown>][] = [
    ["started", { name: "Release", session: "t-1", by: "ada", definition: { steps } }], ["step_started", { step: "build", attempt: 1 }],
    ["step_ended", { step: "build", status: "ok", output: "built" }], ["step_started", { step: "gate", attempt: 1 }], ["approval", { step: "gate", digest: "x" }],
  ];
  const waits = told(...begun);
  assert.equal(waits?.status, "needs_approval");
  assert.deepEqual(waits?.steps.map((each) => [each.id, each.state, each.what]), [["build", "ok", "make"], ["gate", "waiting", "Publish?"]]);
  const denied = told(...begun, ["decided", { step: "gate", approve: false, by: "ada", reason: "not today" }], ["finished", { status: "failed", error: "step gate failed: denied" }]);
  assert.equal(denied?.status, "failed");
  assert.deepEqual([denied?.steps[1]?.state, denied?.steps[1]?.error, denied?.steps[1]?.by], ["failed", "not today", "ada"]);
});

test("what does not fit changes nothing", () => {
  assert.equal(told(["approval", { step: "gate" }]), null);
  const odd = told(["started", { definition: { steps: "no", name: 4 } }], ["step_ended", { step: { a: 1 } }], ["finished", { status: {} }], ["step_started", { step: "x" }]);
  assert.equal(odd?.status, "failed");
  assert.deepEqual(odd?.steps, []);
});
