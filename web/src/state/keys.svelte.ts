// Every action has a key. Pages add theirs while they are shown; the palette and the list of keys show what there is.

import { untrack } from "svelte";

export interface Action {
  id: string;
  /** As it is typed: "n", "g t", "ctrl+k", "?". Empty: only in the palette. */
  keys: string;
  name: string;
  run: () => void;
}

const PAUSE = 1200;

class Actions {
  #groups = $state.raw<ReadonlyMap<string, readonly Action[]>>(new Map());
  #typed = "";
  #typedAt = 0;

  get all(): Action[] {
    return [...this.#groups.values()].flat();
  }

  /** Adds the actions of a part of the page. Returns what takes them away. */
  add(group: string, actions: readonly Action[]): () => void {
    // Untracked: an effect that adds its actions does not depend on those of others.
    untrack(() => { this.#groups = new Map([...this.#groups, [group, actions]]); });
    return () => untrack(() => {
      this.#groups = new Map([...this.#groups].filter(([name]) => name !== group));
    });
  }

  press(event: KeyboardEvent): void {
    const ctrl = event.ctrlKey || event.metaKey;
    if (event.altKey || event.isComposing) return;
    const target = event.target as HTMLElement | null;
    const typing = target?.closest?.("input, textarea, select, [contenteditable], .xterm, .cm-editor, .editor") !== null && target !== null;
    if (typing && !ctrl) return;
    const one = ctrl ? `ctrl+${event.key.toLowerCase()}` : event.key;
    const now = Date.now();
    const two = now - this.#typedAt < PAUSE ? `${this.#typed} ${one}` : one;
    this.#typed = one;
    this.#typedAt = now;
    const found = this.all.find((each) => each.keys === two) ?? this.all.find((each) => each.keys === one);
    if (!found) return;
    event.preventDefault();
    found.run();
  }
}

export const actions = new Actions();
