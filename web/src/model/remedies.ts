// What helps when a run has ended where it should not: the same on its thread and in the inbox. Pure.

/** A remedy: a resumption with this request, or a page where somebody decides. */
export interface RemedyFor { name: string; resume?: Record<string, unknown>; path?: string }

const GB = 1024 ** 3;
const RESUME: RemedyFor = { name: "Resume", resume: {} };

/** The remedies for the end of a run by the code of its error, the likeliest first. `lost`: its box is gone. */
export function remediesFor(code: string, lost: boolean): RemedyFor[] {
  switch (code) {
    case "over_budget": return [{ name: "Resume with $5 more", resume: { budget: { cost: 5 } } }, { name: "Costs and budgets", path: "/settings/usage" }];
    case "quota_exceeded": return [RESUME, { name: "Costs and budgets", path: "/settings/usage" }];
    case "model_unauthorized": case "model_unpaid": case "model_key_missing": case "model_not_found": case "model_unknown": case "agent_not_logged_in":
      return [{ name: "Check the model’s key", path: "/settings/models" }, RESUME];
    case "secret_missing": case "credential_missing": return [{ name: "Set the secret", path: "/settings/secrets" }, RESUME];
    case "environment_incomplete": case "environment_not_allowed": return [{ name: "See the environment", path: "/settings/environments" }, RESUME];
    case "memory_limit": return [{ name: "Resume with 8 GB of memory", resume: { memory: 8 * GB } }];
    case "disk_limit": return [{ name: "Resume with 32 GB of disk", resume: { disk: 32 * GB } }];
  }
  return lost ? [RESUME, { name: "Resume in a new box", resume: { fresh: true } }] : [RESUME];
}
