// Reads a thread: its history by pages, then what comes, as an event stream over fetch (which can carry a credential).

import type { Entry } from "../model/entries.ts";
import { Refused, send } from "./client.ts";
import { expiryOf, getKey, keepLink, linkOf } from "./credentials.ts";
import type { ThreadInfo } from "./types.ts";

const PAGE = 1000;
const LONGEST_PAUSE = 5000;
const RENEW_BEFORE = 30 * 60 * 1000;

export type Connection = "connecting" | "live" | "away" | "closed" | "refused";
type Take = (entries: Entry[]) => void;
type Tell = (state: Connection) => void;

export class Reader {
  readonly thread: string;
  offset = "-1";
  readonly #stop = new AbortController();

  constructor(thread: string) {
    this.thread = thread;
  }

  close(): void {
    this.#stop.abort();
  }

  get isClosed(): boolean {
    return this.#stop.signal.aborted;
  }

  async about(): Promise<ThreadInfo> {
    return (await (await this.#ask(`/v1/threads/${encodeURIComponent(this.thread)}`)).json()) as ThreadInfo;
  }

  /** Calls `take` with the entries that are there, page by page. */
  async history(take: Take, tell: Tell): Promise<void> {
    for (let failures = 0; !this.isClosed;) {
      try {
        const answer = await this.#ask(`/v1/threads/${encodeURIComponent(this.thread)}/entries?unfinished=true&limit=${PAGE}&since=${encodeURIComponent(this.offset)}`);
        const page = (await answer.json()) as { entries: Entry[]; nextOffset: string; upToDate: boolean };
        failures = 0;
        this.offset = page.nextOffset;
        take(page.entries);
        if (page.upToDate) return;
      } catch (error) {
        failures += 1;
        await this.#recover(error, failures, tell);
      }
    }
  }

  /** Calls `take` with new entries, until the thread is closed, the credential is refused, or this reader is closed. */
  async follow(take: Take, tell: Tell): Promise<void> {
    let failures = 0;
    while (!this.isClosed) {
      try {
        await this.#renew();
        const path = `/v1/stream/threads/${encodeURIComponent(this.thread)}?live=sse&offset=${encodeURIComponent(this.offset)}`;
        const answer = await this.#ask(path, "text/event-stream");
        tell("live");
        if (answer.body && (await this.#receive(answer.body.getReader(), take, () => { failures = 0; }))) {
          tell("closed");
          return;
        }
      } catch (error) {
        failures += 1;
        await this.#recover(error, failures, tell);
      }
    }
  }

  async #receive(chunks: ReadableStreamDefaultReader<Uint8Array>, take: Take, good: () => void): Promise<boolean> {
    const decoder = new TextDecoder();
    let rest = "";
    let entries: Entry[] = [];
    for (;;) {
      const { value, done } = await chunks.read();
      if (done) return false;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop() ?? "";
      for (const event of events) {
        const { kind, data } = parseEvent(event);
        if (kind === "data") {
          entries.push(...(JSON.parse(data) as Entry[]));
        } else if (kind === "control") {
          // The offset after these entries is known only now, so they are taken only now. A broken connection repeats none.
          const control = JSON.parse(data) as { streamNextOffset: string; streamClosed?: boolean };
          this.offset = control.streamNextOffset;
          good();
          if (entries.length) take(entries);
          entries = [];
          if (control.streamClosed) return true;
        }
      }
    }
  }

  #ask(path: string, accept = "application/json", method = "GET"): Promise<Response> {
    return send(path, { accept, method, thread: this.thread, signal: this.#stop.signal });
  }

  // A link is renewed before it expires. Keys of the server do not expire.
  async #renew(): Promise<void> {
    const token = getKey() === null ? linkOf(this.thread) : null;
    const expires = token ? expiryOf(token) : null;
    if (expires === null || expires - Date.now() > RENEW_BEFORE) return;
    try {
      const renewed = (await (await this.#ask("/v1/tokens/renew", "application/json", "POST")).json()) as { token: string };
      keepLink(this.thread, renewed.token);
    } catch { /* the old token still works until it expires; then reading fails */ }
  }

  // Waits before the next attempt, longer each time. Throws if the server refused the request.
  async #recover(error: unknown, failures: number, tell: Tell): Promise<void> {
    if (this.isClosed) return;
    if (error instanceof Refused && error.status < 500 && error.status !== 429) throw error;
    tell("away");
    const pause = Math.min(LONGEST_PAUSE, 250 * 2 ** Math.min(failures, 6));
    await new Promise((go) => setTimeout(go, pause * (0.5 + Math.random() / 2)));
  }
}

export function parseEvent(event: string): { kind: string; data: string } {
  let kind = "message";
  const data: string[] = [];
  for (const line of event.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return { kind, data: data.join("\n") };
}
