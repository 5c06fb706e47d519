// The list of threads, kept fresh while the page is visible: often while something works, seldom otherwise.

import { Refused, at, call, get, query } from "../api/client.ts";
import type { BoxRecord, ThreadInfo, WaitingItem } from "../api/types.ts";
import { isPinned, stateOf, titleOf } from "../model/threads.ts";
import { session } from "./session.svelte.ts";
import { notify } from "./notices.svelte.ts";

const PAGE = 200;
const BUSY = 2500;
const CALM = 10_000;
const SEEN = "seen";
const SPARK = 24;

class Threads {
  all = $state.raw<ThreadInfo[]>([]);
  asleep = $state.raw<ReadonlySet<string>>(new Set());
  /** What waits for a person, oldest first. */
  waiting = $state.raw<WaitingItem[]>([]);
  readonly asking = $derived<ReadonlySet<string>>(new Set(this.waiting.filter((each) => each.kind !== "message").map((each) => each.thread ?? "")));
  /** Runs that ended where somebody has to decide: a budget, a key, a limit. */
  readonly stuck = $derived(this.all.filter((each) => !each.archived && !this.asking.has(each.id) && stateOf(each) === "needs you"));
  loaded = $state(false);
  trouble = $state("");
  more = $state(false);
  archived = $state(false);
  /** Entries of each thread at the last readings: the spark. */
  activity = $state.raw<ReadonlyMap<string, number[]>>(new Map());
  seen = $state.raw<Record<string, number>>(readSeen());
  #timer: ReturnType<typeof setTimeout> | null = null;
  #running = false;
  #states = new Map<string, string>();

  start(): void {
    if (this.#running) return;
    this.#running = true;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) void this.refresh();
    });
    void this.#loop();
  }

  stop(): void {
    this.#running = false;
    if (this.#timer) clearTimeout(this.#timer);
    this.all = [];
    this.loaded = false;
  }

  async #loop(): Promise<void> {
    await this.refresh();
    if (!this.#running) return;
    const busy = this.all.some((thread) => thread.status === "running");
    this.#timer = setTimeout(() => void this.#loop(), document.hidden ? CALM * 3 : busy ? BUSY : CALM);
  }

  async refresh(): Promise<void> {
    try {
      const wanted = query("/v1/threads", { limit: PAGE, archived: this.archived ? "any" : null });
      const page = await get<{ threads: ThreadInfo[]; nextCursor: string | null }>(wanted);
      await Promise.all([this.findWaiting(), this.findSleepers()]);
      this.#note(page.threads);
      this.all = page.threads;
      this.more = page.nextCursor !== null;
      this.trouble = "";
    } catch (error) {
      this.trouble = error instanceof Refused ? error.message : "The server does not answer.";
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) session.lose();
    }
    this.loaded = true;
  }

  /** Threads beyond the list that have these words in their title. */
  others = $state.raw<ThreadInfo[]>([]);

  async look(words: string, signal: AbortSignal): Promise<void> {
    if (!this.more || !words.trim()) {
      this.others = [];
      return;
    }
    try {
      const page = await get<{ threads: ThreadInfo[] }>(query("/v1/threads", { search: words.slice(0, 200), limit: PAGE, archived: this.archived ? "any" : null }), { signal });
      const known = new Set(this.all.map((thread) => thread.id));
      this.others = page.threads.filter((thread) => !known.has(thread.id));
    } catch { /* then the list itself is searched */ }
  }

  async findWaiting(): Promise<void> {
    try {
      this.waiting = (await get<{ waiting: WaitingItem[] }>("/v1/inbox/waiting")).waiting;
    } catch { /* then the list is as it was */ }
  }

  async findSleepers(): Promise<void> {
    try {
      const page = await get<{ boxes: BoxRecord[] }>("/v1/boxes?state=hibernated&state=paused&state=stopped&limit=200");
      this.asleep = new Set(page.boxes.map((box) => box.owner.thread).filter((thread) => thread !== null));
    } catch { /* then nothing is shown as asleep */ }
  }

  #note(threads: ThreadInfo[]): void {
    const activity = new Map<string, number[]>();
    for (const thread of threads) {
      activity.set(thread.id, [...(this.activity.get(thread.id) ?? [thread.entryCount]), thread.entryCount].slice(-SPARK));
      const state = stateOf(thread, this.asleep, this.asking);
      const before = this.#states.get(thread.id);
      this.#states.set(thread.id, state);
      if (document.hidden && before !== undefined && before !== state && (before === "working" || state === "needs you")) notify(`${titleOf(thread)}: ${state}`, thread.id);
    }
    this.activity = activity;
    if (!Object.keys(this.seen).length && threads.length) this.#keepSeen(Object.fromEntries(threads.map((thread) => [thread.id, thread.entryCount])));
  }

  titleOf(id: string): string {
    const found = this.all.find((each) => each.id === id);
    return found ? titleOf(found) : id;
  }

  isUnread(thread: ThreadInfo): boolean {
    return thread.status !== "running" && thread.entryCount > (this.seen[thread.id] ?? 0);
  }

  see(id: string, entries: number): void {
    if ((this.seen[id] ?? 0) < entries) this.#keepSeen({ ...this.seen, [id]: entries });
  }

  #keepSeen(seen: Record<string, number>): void {
    this.seen = Object.fromEntries(Object.entries(seen).slice(-2000));
    try {
      localStorage.setItem(SEEN, JSON.stringify(this.seen));
    } catch { /* then everything is new in the next tab */ }
  }

  async pin(thread: ThreadInfo): Promise<void> {
    const labels = { ...thread.labels };
    if (isPinned(thread)) delete labels.pinned;
    else labels.pinned = "true";
    await call("PATCH", at("threads", thread.id), { labels });
    await this.refresh();
  }

  async archive(thread: ThreadInfo): Promise<void> {
    await call("PATCH", at("threads", thread.id), { archived: !thread.archived });
    await this.refresh();
  }
}

function readSeen(): Record<string, number> {
  try {
    const told: unknown = JSON.parse(localStorage.getItem(SEEN) ?? "{}");
    return typeof told === "object" && told !== null ? (told as Record<string, number>) : {};
  } catch {
    return {};
  }
}

export const threads = new Threads();
