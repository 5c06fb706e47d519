// What the items of a timeline can ask of their page.

import type { MarkItem } from "../model/items.ts";

export interface Remedy { name: string; run: () => void }

export interface TimelineActions {
  canAct: boolean;
  fork: (turn: number) => void;
  rewind: (turn: number) => void;
  answer: (question: string, answer: string) => void;
  remedies: (mark: MarkItem) => Remedy[];
  hasTurn: (turn: number) => boolean;
  toggleTurn: (turn: number) => void;
}
