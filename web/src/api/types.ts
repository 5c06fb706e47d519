// What the REST API answers, as far as the page uses it. `holdfast.api` defines it.

export interface Cost {
  key: string; calls: number; input: number; output: number; cacheRead: number; cacheWrite: number; reasoning: number;
  cost: number; unpriced: number; estimated: number;
}
export interface RunError { code: string; message: string; hint: string | null }
export interface RunInfo {
  id: string; thread: string; agent: string; version: string | null; model: string; status: string; stage: string;
  startedAt: number; endedAt: number | null; lastSignAt: number; prompts: string[]; waiting: number; resumes: string | null;
  provider: string; box: string | null; error: RunError | null; cost?: Cost | null; turn: number; checkpoint: string | null;
  needsYou: boolean;
}
export interface ThreadInfo {
  id: string; title: string | null; status: string; parent: string | null; labels: Record<string, string>; archived: boolean;
  entryCount: number; createdAt: number; lastActivityAt: number; nextOffset: string;
  lastEntry: { id: string; ts: number; type: string; text?: string | null } | null;
  run: RunInfo | null; cost?: Cost | null; forkOf?: { thread: string; turn: number } | null;
}
export interface TurnInfo {
  turn: number; thread: string; run: string; agent: string; status: string; endedAt: number | null; snapshot: string | null;
  size: number | null; why: string | null; rewound: boolean;
}
export interface FileChange { path: string; how: "added" | "changed" | "deleted"; binary: boolean; added: number; removed: number }
export interface Changes { files: FileChange[]; patch: string; truncated: boolean; exact: boolean; ignored: number; refused: string[] }
export interface NetworkPolicy { mode: string; allow: string[]; bandwidth?: number | null; connections?: number | null; secrets?: string[] }
export interface BoxRecord {
  id: string; provider: string; key: string | null; state: string; createdAt: number; lastActiveAt: number; endedAt: number | null;
  endedWhy: string | null; owner: { thread: string | null; environment: string | null };
  spec: {
    image: string | null; cpu: number | null; memory: number | null; disk: number | null; pids: number | null; workdir: string;
    network: NetworkPolicy; idleSeconds: number | null;
  };
}
export interface BoxMetrics {
  processes: number; connections: number; idleSeconds: number; memory: number | null; cpuSeconds: number | null; disk: number | null;
  listening: number | null; sent: number | null; received: number | null; outgoing: number | null;
}
export interface ProcessInfo { id: string; argv: string[]; pty: boolean; state: string; exitCode: number | null; startedAt: number; endedAt: number | null }
export interface FileInfo { path: string; kind: "file" | "folder" | "link" | "other"; size: number; mode: number; modifiedAt: number; target: string | null }
export interface EgressDecision {
  id: string; at: number; host: string; port: number; method: string; allowed: boolean; failed: boolean; why: string; count: number;
  sent: number; received: number; milliseconds: number | null;
}
export interface OfferedModel { name: string; model: string | null; api: string; isReady: boolean }
export interface AgentRecord { name: string; title: string; version: string | null; apis: string[]; models: OfferedModel[] }
export interface ModelRecord {
  name: string; endpoints: Record<string, string>; model: string | null; contextWindow: number; maxTokens: number; builtIn: boolean;
  hasKey: boolean; isReady: boolean;
}
export interface Gap { kind: string; name: string; message: string; nextStep: string; required: boolean }
export interface EnvironmentRecord { name: string; version: number; digest: string; text: string; createdAt: number; createdBy: string }
export interface EnvironmentCheck { reference: string; gaps: Gap[]; setup: string; ok: boolean }
export interface SecretRecord {
  name: string; bindings: { host: string; placement: string; name: string; repositories?: string[] }[]; expose: string | null; version: number;
  changedAt: number; changedBy: string;
}
export interface ProviderRecord {
  name: string; kind: string; isolation: string; isReady: boolean; reason: string | null; hint: string | null; boxes: number; isAdded: boolean;
  credential: string | null; needsCredential: boolean;
}
export interface ShareRecord { id: string; thread: string; createdBy: string; createdAt: number; expiresAt: number }
export interface ApiKey { id: string; name: string; createdAt: number; revokedAt: number | null }
export interface Caller { tenant: string; user: string; key: string | null; role?: string }
export interface Member { name: string; role: string; addedAt?: number; createdAt?: number }
export interface BudgetRecord { scope: string; subject: string; budget: { cost: number | null; tokens: number | null; warnAt: number }; cost: number; tokens: number; unpriced: number }
export interface Branch {
  thread: string; title: string | null; turns: number; files: FileChange[]; patch: string; truncated: boolean; ms: number;
  test: { exitCode: number | null; output: string; ms: number } | null; cost?: Cost | null;
}
export interface Comparison { parted: { thread: string; turn: number }; branches: Branch[]; test: string | null }
export interface ExecutionInfo {
  id: string; workflow: string; name: string; session: string; status: string;
  requiresApproval: { stepId: string; prompt: string; items: string[]; resumeToken: string } | null;
}
export interface WaitingItem {
  kind: "question" | "permission" | "approval" | "message"; id: string; thread: string | null; text: string; askedAt: number; options: string[];
  to: string | null; expiresAt: number | null; canReply: boolean;
}
export interface Tunnel { name: string; port: number; protocol: string; path: string; url: string | null }
export interface SessionInfo { id: string; state: string; jointState: string; agentState: string; sandboxState: string }
