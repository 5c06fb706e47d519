// What a timeline consists of: items, in chunks. Plain objects, which the components draw.

import type { Step } from "./sub_agents.ts";
import type { Described, ToolStatus } from "./tools.ts";

interface Base { key: string; ts: number; when: string; turn: number }
export interface PromptItem extends Base { kind: "prompt"; text: string; tag: string; author: string; entry: string }
export interface WhoItem extends Base { kind: "who"; agent: string; rest: string }
export interface ProseItem extends Base { kind: "prose"; text: string; live: boolean; partial: boolean }
export interface FoldedItem extends Base { kind: "thinking"; lead: string; text: string }
export interface ToolItem extends Base {
  kind: "tool";
  call: Described;
  given: unknown;
  status: ToolStatus;
  summary: string;
  output: string | null;
  truncated: boolean;
  took: number | null;
  /** What its sub-agent did, if it has one. */
  steps: readonly Step[];
}
export interface RemarkItem extends Base { kind: "remark"; text: string; serious: boolean }
export interface MarkItem extends Base { kind: "mark"; style: string; text: string; details: string[]; below: string; code: string; run: string }
export interface CheckpointItem extends Base { kind: "checkpoint"; number: number; skipped: string }
export interface QuestionItem extends Base {
  kind: "question";
  question: string;
  text: string;
  options: string[];
  permission: boolean;
  /** In words, or null while it waits for somebody. */
  answer: string | null;
}
export interface ChildItem extends Base { kind: "child"; thread: string; title: string; agent: string; status: string }
export interface CellCall { name: string; status: string; seconds: number; detail: string }
export interface CellItem extends Base {
  kind: "cell";
  id: string;
  code: string;
  number: number;
  stdout: string;
  stderr: string;
  value: string;
  error: string;
  submitted: string;
  /** What became of its memory, if that was lost or restored. */
  memory: string;
  /** Where its artifacts are. */
  box: string;
  artifacts: { name: string; mediaType: string; path: string; size: number }[];
  calls: CellCall[];
  running: boolean;
  seconds: number | null;
}
export type Item = PromptItem | WhoItem | ProseItem | FoldedItem | ToolItem | RemarkItem | MarkItem | CheckpointItem | QuestionItem | ChildItem | CellItem;
/** An item without the fields that the list gives it. */
export type Made<T> = T extends Item ? Omit<T, "key" | "ts" | "when" | "turn"> : never;

export interface Chunk { id: number; items: readonly Item[] }
