// The items of a timeline, in chunks, of which the page draws those that are near. An item is replaced, never changed, and a chunk that
// has a changed item is a new object in the next snapshot: whoever draws sees by identity what is new.

import type { Chunk, Item, Made } from "./items.ts";
import { duration } from "./text.ts";

const CHUNK = 40;

export class ItemList {
  /** When the first run began. Times are shown from there. */
  began: number | null = null;
  #chunks: { id: number; items: Item[]; shown: Chunk | null }[] = [];
  readonly #chunkOf = new Map<string, number>();
  #keys = 0;
  #latest = 0;

  /** The chunks as they are now. Those without a change are the objects of the last snapshot. */
  snapshot(): Chunk[] {
    return this.#chunks.filter((chunk) => chunk.items.length).map((chunk) => (chunk.shown ??= { id: chunk.id, items: [...chunk.items] }));
  }

  *[Symbol.iterator](): Generator<Item> {
    for (const chunk of this.#chunks) yield* chunk.items;
  }

  /** The last items, the latest first, as far as one chunk has them. */
  *fromEnd(): Generator<Item> {
    const items = this.#chunks.at(-1)?.items ?? [];
    for (let at = items.length - 1; at >= 0; at -= 1) yield items[at] as Item;
  }

  /** Adds an item at the end, or before another. Returns its key. */
  add(made: Made<Item>, ts: number, turn: number, before = ""): string {
    const key = String((this.#keys += 1));
    let when = this.#when(ts);
    const at = before ? this.#chunks.find((each) => each.id === this.#chunkOf.get(before)) : undefined;
    const index = at ? at.items.findIndex((each) => each.key === before) : -1;
    if (at && index >= 0) {
      // Times ascend down the page.
      when = at.items[index]?.when ?? when;
      at.items.splice(index, 0, { ...made, key, ts, when, turn } as Item);
      at.shown = null;
      this.#chunkOf.set(key, at.id);
      return key;
    }
    let chunk = this.#chunks.at(-1);
    if (!chunk || chunk.items.length >= CHUNK) {
      chunk = { id: this.#chunks.length, items: [], shown: null };
      this.#chunks.push(chunk);
    }
    chunk.items.push({ ...made, key, ts, when, turn } as Item);
    chunk.shown = null;
    this.#chunkOf.set(key, chunk.id);
    return key;
  }

  find(key: string): Item | undefined {
    return this.#chunks[this.#chunkOf.get(key) ?? -1]?.items.find((each) => each.key === key);
  }

  change<T extends Item>(key: string, change: Partial<T>): void {
    const chunk = this.#chunks[this.#chunkOf.get(key) ?? -1];
    const index = chunk?.items.findIndex((each) => each.key === key) ?? -1;
    const item = chunk?.items[index];
    if (!chunk || !item) return;
    chunk.items[index] = { ...item, ...change } as Item;
    chunk.shown = null;
  }

  remove(key: string): void {
    const chunk = this.#chunks[this.#chunkOf.get(key) ?? -1];
    if (!chunk) return;
    chunk.items = chunk.items.filter((each) => each.key !== key);
    chunk.shown = null;
    this.#chunkOf.delete(key);
  }

  #when(ts: number): string {
    if (ts <= 0 || ts >= 8.64e15) return "";
    // Entries come in order, but from several clocks. The shown time never goes back; the title has the real one.
    this.#latest = Math.max(this.#latest, ts);
    return this.began !== null && this.#latest >= this.began ? `+${duration(this.#latest - this.began).replace(" ", "\u202f")}` : "";
  }
}
