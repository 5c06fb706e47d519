// What stands in one paragraph of Markdown: code, strong, emphasised and struck text, within each other. Pure, and linear in the
// length of the text: agents write megabytes.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong"; content: Inline[] }
  | { kind: "em"; content: Inline[] }
  | { kind: "del"; content: Inline[] };

/** A run of `*`, `_` or `~` that may begin or end something. */
interface Run { at: number; mark: string; count: number; opens: boolean; closes: boolean }

const MOST_RUNS = 600;
const LINK = /!?\[([^[\]\n]{1,500})\]\(<?([^()\s<>]{0,2000}(?:\([^()\s]{0,200}\)[^()\s<>]{0,500})?)>?(?: +"[^"\n]{0,200}")?\)/y;
const ADDRESS = /<((?:https?|mailto):[^<>\s]{1,2000})>/y;
const ESCAPED = /[!-/:-@[-`{-~]/;
const SPACE = /\s/;
const SIGN = /[\p{P}\p{S}]/u;

export function inline(text: string): Inline[] {
  const parts: Inline[] = [];
  const runs: Run[] = [];
  const unclosed = new Set<number>(); // lengths of runs of ` that have no end
  let plain = "";
  const flush = (): void => {
    if (plain) parts.push({ kind: "text", text: plain });
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const mark = text[at] ?? "";
    if (mark === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (mark === "`") {
      let to = at;
      while (text[to] === "`") to += 1;
      const end = unclosed.has(to - at) ? -1 : endOfCode(text, to, to - at);
      if (end < 0) {
        unclosed.add(to - at);
        plain += text.slice(at, to);
        at = to;
      } else {
        flush();
        const code = text.slice(to, end);
        parts.push({ kind: "code", text: /^ .*\S.* $/s.test(code) ? code.slice(1, -1) : code });
        at = end + to - at;
      }
    } else if (mark === "[" || (mark === "!" && text[at + 1] === "[")) {
      LINK.lastIndex = at;
      const link = LINK.exec(text);
      if (link) {
        const [whole, words = "", address = ""] = link;
        flush();
        parts.push(...inline(words));
        plain = address && words !== address ? ` (${address})` : "";
        at += whole.length;
      } else {
        plain += mark;
        at += 1;
      }
    } else if (mark === "<") {
      ADDRESS.lastIndex = at;
      const address = ADDRESS.exec(text);
      plain += address ? address[1] : mark;
      at += address ? address[0].length : 1;
    } else if ((mark === "*" || mark === "_" || mark === "~") && runs.length < MOST_RUNS) {
      let to = at;
      while (text[to] === mark) to += 1;
      flush();
      runs.push(runAt(text, at, to, parts.length));
      parts.push({ kind: "text", text: text.slice(at, to) });
      at = to;
    } else {
      plain += mark;
      at += 1;
    }
  }
  flush();
  return emphasised(parts, runs);
}

function endOfCode(text: string, from: number, length: number): number {
  for (let at = text.indexOf("`", from); at >= 0; at = text.indexOf("`", at)) {
    let to = at;
    while (text[to] === "`") to += 1;
    if (to - at === length) return at;
    at = to;
  }
  return -1;
}

function runAt(text: string, from: number, to: number, at: number): Run {
  const mark = text[from] ?? "";
  const before = text[from - 1] ?? " ";
  const after = text[to] ?? " ";
  const left = !SPACE.test(after) && (!SIGN.test(after) || SPACE.test(before) || SIGN.test(before));
  const right = !SPACE.test(before) && (!SIGN.test(before) || SPACE.test(after) || SIGN.test(after));
  const isWord = mark === "_"; // snake_case is no emphasis
  return {
    at, mark, count: to - from,
    opens: left && (!isWord || !right || SIGN.test(before)) && (mark !== "~" || to - from === 2),
    closes: right && (!isWord || !left || SIGN.test(after)) && (mark !== "~" || to - from === 2),
  };
}

// Each run that may end something ends the nearest one that began it. What is between them becomes its content.
function emphasised(parts: Inline[], runs: Run[]): Inline[] {
  const open: Run[] = [];
  for (const run of runs) {
    while (run.closes && run.count > 0) {
      const index = open.findLastIndex((each) => each.mark === run.mark);
      const opener = open[index];
      if (!opener) break;
      open.length = index + 1;
      const used = opener.count >= 2 && run.count >= 2 ? 2 : 1;
      const kind = run.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      const content = parts.slice(opener.at + 1, run.at).filter((each) => each.kind !== "text" || each.text !== "");
      // Places stay as they are, so that the other runs find theirs: what was taken in leaves empty text.
      for (let at = opener.at + 1; at < run.at; at += 1) parts[at] = { kind: "text", text: "" };
      opener.count -= used;
      run.count -= used;
      parts[opener.at] = { kind: "text", text: run.mark.repeat(opener.count) };
      parts[run.at] = { kind: "text", text: run.mark.repeat(run.count) };
      if (run.at > opener.at + 1) parts[opener.at + 1] = { kind, content };
      if (opener.count === 0) open.pop();
    }
    if (run.opens && run.count > 0) open.push(run);
  }
  return parts.filter((each) => each.kind !== "text" || each.text !== "");
}
