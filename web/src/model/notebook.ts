// The thread of an interpreter: each execution is a cell, with what it called on the host.

import type { ItemList } from "./item_list.ts";
import type { CellItem } from "./items.ts";
import { type Fields, fields, firstLine, linesOf, number, plain, text } from "./text.ts";

const MOST_TEXT = 64 * 1024;

export class Notebook {
  /** Whether there is anything of an interpreter on the thread. */
  isUsed = false;
  /** Its box, where its files and artifacts are. */
  box = "";
  readonly #items: ItemList;
  readonly #cells = new Map<string, string>();
  #count = 0;

  constructor(items: ItemList) {
    this.#items = items;
  }

  take(name: string, payload: Fields, ts: number): void {
    this.isUsed = true;
    this.#items.began ??= ts;
    if (name === "started") this.box = text(payload.box);
    if (name === "execution") this.#execution(payload, ts);
    else if (name === "call") this.#callback(payload);
    else if (name === "started") this.#items.add({ kind: "remark", text: `● Python ${firstLine(payload.python) || ""} started`.replace("  ", " "), serious: false }, ts, 0);
    else if (name === "ended") this.#items.add({ kind: "remark", text: "■ ended", serious: false }, ts, 0);
    else if (name === "gap") this.#items.add({ kind: "remark", text: `! ${number(payload.count) ?? 0} entries are missing here`, serious: true }, ts, 0);
    else if (name === "state") this.#items.add({ kind: "remark", text: `state ${firstLine(payload.what) || firstLine(payload.action) || "changed"}`, serious: false }, ts, 0);
    else if (name === "child") this.#items.add({ kind: "thinking", lead: "↳ child: ", text: plain(text(payload.result) || JSON.stringify(payload.result ?? "")).slice(0, MOST_TEXT) }, ts, 0);
  }

  #execution(payload: Fields, ts: number): void {
    const id = text(payload.id);
    const ended = typeof payload.ok === "boolean";
    const error = fields(payload.error);
    const submitted = payload.submitted === undefined ? "" : JSON.stringify(payload.submitted, null, 2);
    const result = {
      code: plain(payload.code),
      stdout: text(payload.stdout),
      stderr: text(payload.stderr),
      value: plain(payload.value_text),
      error: text(error.traceback) || [text(error.kind), text(error.message)].filter(Boolean).join(": "),
      submitted: plain(submitted),
      artifacts: (Array.isArray(payload.artifacts) ? payload.artifacts : []).slice(0, 100).map((each) => ({
        name: firstLine(fields(each).name), mediaType: firstLine(fields(each).media_type), path: firstLine(fields(each).path),
        size: number(fields(each).size) ?? 0,
      })),
      memory: payload.state_lost === true ? "The variables were lost: what comes next begins anew." : payload.restored === true ? "The variables are those from before this cell." : "",
      box: this.box,
      running: !ended,
      seconds: number(payload.seconds),
    };
    const key = this.#cells.get(id);
    if (key) {
      this.#items.change<CellItem>(key, result);
      return;
    }
    this.#count += 1;
    this.#cells.set(id, this.#items.add({ kind: "cell", id, number: this.#count, calls: [], ...result }, ts, 0));
  }

  #callback(payload: Fields): void {
    const key = this.#cells.get(text(payload.execution));
    const cell = key === undefined ? undefined : this.#items.find(key);
    if (!key || cell?.kind !== "cell") return;
    const detail = linesOf(JSON.stringify(payload.arguments ?? payload.args ?? ""))[0] ?? "";
    const made = { name: firstLine(payload.name), status: firstLine(payload.status), seconds: number(payload.seconds) ?? 0, detail: detail.slice(0, 300) };
    this.#items.change<CellItem>(key, { calls: [...cell.calls, made].slice(-200) });
  }
}
