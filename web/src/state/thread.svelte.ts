// One thread that is shown: reads it, keeps its timeline, and draws at most once in a frame.

import { Refused, at, call, get } from "../api/client.ts";
import { linkOf } from "../api/credentials.ts";
import { type Connection, Reader } from "../api/reader.ts";
import type { ModelRecord, ThreadInfo } from "../api/types.ts";
import type { Entry } from "../model/entries.ts";
import type { Chunk } from "../model/items.ts";
import type { Run, Status } from "../model/run.ts";
import { firstLine } from "../model/text.ts";
import { Timeline } from "../model/timeline.ts";
import type { Workflow } from "../model/workflow.ts";
import { session } from "./session.svelte.ts";
import { threads } from "./threads.svelte.ts";

export interface Trouble { head: string; said: string; remedy: string; status: number }

export interface Shown {
  chunks: readonly Chunk[];
  status: Status;
  run: Run | null;
  box: string;
  entries: number;
  boxes: number;
  cost: string;
  began: number | null;
  firstPrompt: string;
  workflow: Workflow | null;
}

export class ThreadView {
  readonly id: string;
  readonly timeline = new Timeline();
  about = $state.raw<ThreadInfo | null>(null);
  shown = $state.raw<Shown>({ chunks: [], status: "idle", run: null, box: "", entries: 0, boxes: 0, cost: "", began: null, firstPrompt: "", workflow: null });
  connection = $state<Connection>("connecting");
  loaded = $state(false);
  loading = $state(0);
  trouble = $state.raw<Trouble | null>(null);
  contextWindow = $state(0);
  /** Grows with each drawing: what depends on the timeline reads it. */
  version = $state(0);
  readonly #reader: Reader;
  #drawing = false;

  constructor(id: string) {
    this.id = id;
    this.#reader = new Reader(id);
  }

  get title(): string {
    return firstLine(this.about?.title ?? "") || this.shown.firstPrompt || this.id;
  }

  get canSee(): boolean {
    return session.canSee;
  }

  async open(): Promise<void> {
    try {
      const reading = this.#reader.history((entries) => {
        this.#take(entries);
        this.loading = this.timeline.entries;
      }, (state) => { this.connection = state; });
      [this.about] = await Promise.all([this.#reader.about(), reading]);
      this.#draw();
      this.loaded = true;
      await this.#reader.follow((entries) => {
        this.#take(entries);
        this.#drawSoon();
      }, (state) => { this.connection = state; });
    } catch (error) {
      if (this.#reader.isClosed) return;
      this.trouble = explain(error, this.id);
      this.connection = "refused";
    }
  }

  close(): void {
    this.#reader.close();
  }

  async refresh(): Promise<void> {
    if (!this.canSee) return;
    this.about = await get<ThreadInfo>(at("threads", this.id));
  }

  #take(entries: Entry[]): void {
    for (const entry of entries) {
      try {
        this.timeline.take(entry);
      } catch (error) {
        console.error("an entry could not be shown", error);
      }
    }
  }

  #drawSoon(): void {
    if (this.#drawing) return;
    this.#drawing = true;
    // A hidden tab draws no frames.
    if (document.hidden) setTimeout(() => this.#draw(), 250);
    else requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    this.#drawing = false;
    const { timeline } = this;
    const ended = this.shown.status === "running" && timeline.status !== "running";
    this.shown = {
      chunks: timeline.snapshot(), status: timeline.status, run: timeline.run ? { ...timeline.run } : null, box: timeline.box, entries: timeline.entries,
      boxes: timeline.boxes.size, cost: timeline.cost, began: timeline.began, firstPrompt: timeline.firstPrompt, workflow: timeline.workflow,
    };
    this.version += 1;
    if (!document.hidden) threads.see(this.id, timeline.entries);
    if (ended) void this.refresh().catch(() => undefined);
    if (timeline.contextModel && !this.contextWindow && this.canSee) void this.#findWindow(timeline.contextModel);
  }

  async #findWindow(model: string): Promise<void> {
    this.contextWindow = -1;
    try {
      this.contextWindow = (await get<ModelRecord>(at("models", model.split("/")[0] ?? ""))).contextWindow;
    } catch { /* then there is no gauge */ }
  }

  // --- what one can do ---

  /** Sends a prompt: it starts a run, waits for the current one, or interrupts it. Sessions queue it. */
  async send(prompt: string, { interrupt = false, agent = "", model = "" } = {}): Promise<void> {
    if (this.timeline.isSession) {
      await call("POST", at("sessions", this.id, "prompts"), { prompt, mode: interrupt ? "steer" : "followup" });
    } else if (this.shown.status === "running") {
      await call("POST", at("runs", this.id, "steer"), { prompt, interrupt });
    } else if (this.shown.run || agent) {
      await call("POST", this.shown.run ? at("runs", this.id, "resume") : at("runs"), {
        prompt, ...(agent ? { agent } : {}), ...(model ? { model } : {}), ...(this.shown.run ? {} : { thread: this.id }),
      });
    } else {
      await call("POST", at("threads", this.id, "chat"), { text: prompt });
    }
  }

  answer(question: string, answer: string): Promise<unknown> {
    return call("POST", at("sessions", this.id, "answers"), { question, answer });
  }

  stop(): Promise<unknown> {
    return call("POST", at("runs", this.id, "cancel"), {});
  }

  resume(body: Record<string, unknown> = {}): Promise<unknown> {
    return call("POST", at("runs", this.id, "resume"), body);
  }

  fork(turn: number | null, prompt = ""): Promise<{ thread: string }> {
    return call("POST", at("threads", this.id, "forks"), { ...(turn ? { at: String(turn) } : {}), ...(prompt ? { prompt } : {}) });
  }

  rewind(turn: number): Promise<unknown> {
    return call("POST", at("threads", this.id, "rewind"), { at: String(turn) });
  }

  undoRewind(): Promise<unknown> {
    return call("POST", at("threads", this.id, "rewind"), { undo: true });
  }
}

function explain(error: unknown, thread: string): Trouble {
  if (!(error instanceof Refused)) {
    return { head: "This page cannot read the thread", said: String((error as Error)?.message ?? error), remedy: `holdfast attach ${thread}`, status: 0 };
  }
  const { status } = error;
  if (status === 404 || status === 410) {
    return { head: `There is no thread ${thread}`, said: "It was deleted, or it is on another server.", remedy: "holdfast thread list", status };
  }
  if (status === 401 || status === 403) {
    return linkOf(thread) || session.refusal
      ? { head: "This link does not open this thread", said: "A link is valid for a day and for one thread. This command prints a new one:", remedy: `holdfast attach ${thread}`, status }
      : { head: "This address has no key", said: "Open the link that this command prints. It is valid for a day:", remedy: `holdfast attach ${thread}`, status };
  }
  return { head: "The server refused the request", said: firstLine(error.message), remedy: `holdfast thread show ${thread}`, status };
}
