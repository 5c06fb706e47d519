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
  // A plain map, and beside it a count that tells when it has changed. The clean-up of an effect reads states as they were before
  // the change that made it run: with the map as a state, it would bring back old actions and lose those that others have just added.
  readonly #groups = new Map<string, readonly Action[]>();
  #changes = $state(0);
  #typed = "";
  #typedAt = 0;

  get all(): Action[] {
    void this.#changes;
    return [...this.#groups.values()].flat();
  }

  /** Adds the actions of a part of the page. Returns what takes them away. */
  add(group: string, actions: readonly Action[]): () => void {
    this.#groups.set(group, actions);
    this.#count();
    return () => {
      // The same part of the next page may have added its actions already.
      if (this.#groups.get(group) !== actions) return;
      this.#groups.delete(group);
      this.#count();
    };
  }

  // Untracked: an effect that adds its actions does not depend on those of others.
  #count(): void {
    untrack(() => { this.#changes += 1; });
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
