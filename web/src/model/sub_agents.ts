// What sub-agents do: their steps belong to the call that started them, and are no part of the conversation. An agent that shows
// them writes records of its own, which name that call. Pure.

import type { ItemList } from "./item_list.ts";
import type { ToolItem } from "./items.ts";
import { type Fields, fields, firstLine, plain, text } from "./text.ts";
import { type Described, describeCall, summarize } from "./tools.ts";

export interface Step { id: string; icon: string; what: string; result: string; failed: boolean }

const MOST_STEPS = 200;
const MOST_CALLS = 500;
const MOST_TEXT = 8 * 1024;

export class SubAgents {
  readonly #items: ItemList;
  readonly #calls = new Map<string, string>();

  constructor(items: ItemList) {
    this.#items = items;
  }

  /** Notes a call that starts a sub-agent. It may go on when the call has ended. */
  begin(call: unknown, described: Described, key: string): void {
    if (!described.isAgent || typeof call !== "string" || this.#calls.size >= MOST_CALLS) return;
    this.#calls.set(call, key);
  }

  take(record: Fields): void {
    const key = this.#calls.get(text(record.parent_tool_use_id));
    const item = key === undefined ? undefined : this.#items.find(key);
    if (key === undefined || item?.kind !== "tool") return;
    const steps = [...item.steps];
    const content = fields(record.message).content;
    for (const block of Array.isArray(content) ? content.slice(0, MOST_STEPS).map(fields) : []) {
      if (block.type === "text" && record.type === "assistant" && text(block.text).trim()) {
        steps.push({ id: "", icon: "", what: plain(block.text).trim().slice(0, MOST_TEXT), result: "", failed: false });
      } else if (block.type === "tool_use") {
        const call = describeCall(block.name, block.input);
        steps.push({ id: text(block.id), icon: call.icon, what: call.what, result: "…", failed: false });
      } else if (block.type === "tool_result") {
        const at = steps.findIndex((each) => each.id !== "" && each.id === block.tool_use_id);
        const step = steps[at];
        if (step) steps[at] = { ...step, failed: block.is_error === true, result: firstLine(summarize(step.icon, textOf(block.content), block.is_error === true ? "error" : "ok")) };
      }
    }
    this.#items.change<ToolItem>(key, { steps: steps.slice(-MOST_STEPS) });
  }
}

function textOf(content: unknown): string {
  return Array.isArray(content) ? content.map((each) => text(fields(each).text)).join("\n") : text(content);
}
