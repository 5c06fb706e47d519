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
  for (const code of codes.split(";").map(Number)) {
    if (code === 0) next = [];
    else if (code >= 1 && code <= 4) next = [...next.filter((each) => each !== `a${code}`), `a${code}`];
    else if (code === 22) next = next.filter((each) => each !== "a1" && each !== "a2");
    else if (code === 39) next = next.filter((each) => !each.startsWith("c"));
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
      next = [...next.filter((each) => !each.startsWith("c")), `c${code % 10}`];
    }
  }
  return next;
}
