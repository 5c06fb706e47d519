// Output of a terminal as pieces with classes for its colours. Every other sequence is taken out. Pure.

import { plain, text } from "./text.ts";

export interface Piece { text: string; classes: string }

export function terminalPieces(value: unknown): Piece[] {
  const pieces: Piece[] = [];
  let classes: string[] = [];
  // eslint-disable-next-line no-control-regex
  for (const piece of text(value).split(/(\x1b\[[0-9;]{0,64}m)/)) {
    if (piece.startsWith("\x1b[") && piece.endsWith("m")) {
      classes = styled(classes, piece.slice(2, -1));
      continue;
    }
    const shown = plain(piece);
    if (shown) pieces.push({ text: shown, classes: classes.join(" ") });
  }
  return pieces;
}

function styled(classes: string[], codes: string): string[] {
  let next = classes;
  const without = (prefix: string): string[] => next.filter((each) => !each.startsWith(prefix));
  const numbers = codes.split(";").map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const code = numbers[at] ?? 0;
    if (code === 0) next = [];
    else if (code >= 1 && code <= 4) next = [...without(`a${code}`), `a${code}`];
    else if (code === 22) next = next.filter((each) => each !== "a1" && each !== "a2");
    else if (code === 23 || code === 24) next = without(`a${code - 20}`);
    else if (code === 39) next = without("c");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) next = [...without("c"), `c${code % 10}`];
    else if (code === 38 || code === 48) {
      // One of 256 colours, or one of all. Backgrounds are not shown, but their numbers are not codes of their own.
      const long = numbers[at + 1] === 2;
      const color = long ? nearest(numbers[at + 2] ?? 0, numbers[at + 3] ?? 0, numbers[at + 4] ?? 0) : ofTable(numbers[at + 2] ?? 0);
      if (code === 38) next = color < 0 ? without("c") : [...without("c"), `c${color}`];
      at += long ? 4 : 2;
    }
  }
  return next;
}

/** One of the 256 colours as the nearest of ours, or -1 for the colour of text. */
function ofTable(index: number): number {
  if (index < 16) return index % 8;
  if (index >= 232) return index < 250 ? 7 : -1;
  const level = (amount: number): number => (amount % 6 ? 55 + 40 * (amount % 6) : 0);
  return nearest(level(Math.floor((index - 16) / 36)), level(Math.floor((index - 16) / 6)), level(index - 16));
}

/** The colour of ours with the nearest hue: ours can be read on light and on dark. */
function nearest(red: number, green: number, blue: number): number {
  const most = Math.max(red, green, blue);
  const spread = most - Math.min(red, green, blue);
  if (spread < 40) return most > 180 ? -1 : 7;
  const hue = most === red ? ((green - blue) / spread + 6) % 6 : most === green ? (blue - red) / spread + 2 : (red - green) / spread + 4;
  return [1, 3, 2, 6, 4, 5][Math.round(hue) % 6] ?? 7;
}
