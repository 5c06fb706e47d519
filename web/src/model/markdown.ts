// The Markdown that agents and people write in, as a tree of blocks. It follows CommonMark and the tables, task lists and strike-through
// of GitHub, and is lenient where agents are careless: a list below a list item belongs to it from two spaces on. Links and pictures are
// shown with their address and lead nowhere. The tree has only text in it: whoever shows it makes nodes, never markup. Pure.

import { type Inline, inline } from "./markdown_inline.ts";
import { plain } from "./text.ts";

export type { Inline };
export type Alignment = "left" | "center" | "right" | "";
export interface ListItem { checked: boolean | null; blocks: Block[] }
export interface List { kind: "list"; ordered: boolean; start: number; tight: boolean; items: ListItem[] }
export type Block =
  | { kind: "paragraph"; content: Inline[] }
  | { kind: "heading"; level: number; content: Inline[] }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "rule" }
  | { kind: "code"; language: string; text: string }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][]; alignments: Alignment[] }
  | List;

const MOST_DEPTH = 8;
const MOST_COLUMNS = 40;
const LONG = 10_000;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )| +(?=\S)|$)(.*)$/;
const FENCE = /^( *)(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const UNDERLINE = /^ {0,3}(=+|-+) *$/;
const DELIMITERS = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

export function parseMarkdown(value: unknown): Block[] {
  return parse(plain(value).replace(/^\n+|\s+$/g, "").split("\n").map((line) => line.replaceAll("\t", "    ")), 0);
}

const indentOf = (line: string): number => line.length - line.trimStart().length;
const isBlank = (line: string): boolean => line.trim() === "";

/** Whether a line begins a block of its own, and so ends the paragraph above it. */
function begins(line: string): boolean {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || (item !== null && item[4] !== "" && (/^[-*+]/.test(item[2] ?? "") || /^1\D/.test(item[2] ?? "")));
}

function isTable(line: string, next: string | undefined): boolean {
  return next !== undefined && line.includes("|") && next.includes("-") && next.includes("|") && next.length < LONG && DELIMITERS.test(next);
}

function parse(lines: readonly string[], depth: number): Block[] {
  const found: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (isBlank(line)) {
      at += 1;
    } else if (fence) {
      const [block, next] = fenced(lines, at, fence);
      found.push(block);
      at = next;
    } else if (indentOf(line) >= 4) {
      const from = at;
      while (at < lines.length && (isBlank(lines[at] ?? "") || indentOf(lines[at] ?? "") >= 4)) at += 1;
      found.push({ kind: "code", language: "", text: lines.slice(from, at).map((each) => each.slice(4)).join("\n").trimEnd() });
    } else if (heading) {
      found.push({ kind: "heading", level: heading[1]?.length ?? 1, content: inline(heading[2] ?? "") });
      at += 1;
    } else if (RULE.test(line)) {
      found.push({ kind: "rule" });
      at += 1;
    } else if (QUOTE.test(line) && depth < MOST_DEPTH) {
      const from = at;
      while (at < lines.length && (QUOTE.test(lines[at] ?? "") || !(isBlank(lines[at] ?? "") || begins(lines[at] ?? "")))) at += 1;
      found.push({ kind: "quote", blocks: parse(lines.slice(from, at).map((each) => each.replace(QUOTE, "")), depth + 1) });
    } else if (ITEM.test(line) && depth < MOST_DEPTH) {
      const [list, next] = listed(lines, at, depth);
      found.push(list);
      at = next;
    } else if (isTable(line, lines[at + 1])) {
      const from = at;
      at += 2;
      while (at < lines.length && (lines[at] ?? "").includes("|")) at += 1;
      const rows = lines.slice(from, at).map(cellsOf);
      const alignments = (rows[1] ?? []).map((cell): Alignment => (/^:-+:$/.test(cell) ? "center" : cell.endsWith(":") ? "right" : cell.startsWith(":") ? "left" : ""));
      found.push({ kind: "table", head: (rows[0] ?? []).map(inline), rows: rows.slice(2).map((row) => row.map(inline)), alignments });
    } else {
      const from = at;
      at += 1;
      while (at < lines.length && !isBlank(lines[at] ?? "") && !UNDERLINE.test(lines[at] ?? "") && !begins(lines[at] ?? "") && !isTable(lines[at] ?? "", lines[at + 1])) at += 1;
      const content = inline(lines.slice(from, at).map((each) => each.trim()).join("\n"));
      const underline = UNDERLINE.exec(lines[at] ?? "");
      if (underline) at += 1;
      found.push(underline ? { kind: "heading", level: underline[1]?.startsWith("=") ? 1 : 2, content } : { kind: "paragraph", content });
    }
  }
  return found;
}

function fenced(lines: readonly string[], at: number, fence: RegExpExecArray): [Block, number] {
  const [, indent = "", marks = "", language = ""] = fence;
  const end = new RegExp(`^ *${marks[0]}{${marks.length},} *$`);
  let to = at + 1;
  while (to < lines.length && !end.test(lines[to] ?? "")) to += 1;
  const text = lines.slice(at + 1, to).map((line) => line.slice(Math.min(indent.length, indentOf(line)))).join("\n");
  return [{ kind: "code", language: language.trim().split(/\s+/)[0] ?? "", text }, to + 1];
}

function listed(lines: readonly string[], from: number, depth: number): [List, number] {
  const first = ITEM.exec(lines[from] ?? "");
  const margin = first?.[1]?.length ?? 0;
  const bullet = (marker: string | undefined): string => (marker ?? "").replace(/^\d+/, "1");
  const list: List = { kind: "list", ordered: /\d/.test(first?.[2] ?? ""), start: parseInt(first?.[2] ?? "1", 10) || (first?.[2]?.startsWith("0") ? 0 : 1), tight: true, items: [] };
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at] ?? "");
    if (!item || bullet(item[2]) !== bullet(first?.[2]) || (item[1]?.length ?? 0) > margin + 1 || RULE.test(lines[at] ?? "")) break;
    const inside = (item[1]?.length ?? 0) + (item[2]?.length ?? 0) + (item[3]?.length ?? 1);
    const own = [item[4] ?? ""];
    let after = 0; // blank lines, of which is not known yet whether they are in the item
    at += 1;
    while (at < lines.length) {
      const line = lines[at] ?? "";
      if (isBlank(line)) after += 1;
      else if (indentOf(line) >= Math.min(inside, margin + 2) || (!after && !begins(line) && !ITEM.test(line))) {
        if (after) list.tight = list.tight && indentOf(line) >= inside && own.some((each) => FENCE.test(each)) && !begins(line);
        own.push(...Array.from({ length: after }, () => ""), line.slice(Math.min(indentOf(line), inside)));
        after = 0;
      } else break;
      at += 1;
    }
    if (after && ITEM.exec(lines[at] ?? "")?.[2] !== undefined && bullet(ITEM.exec(lines[at] ?? "")?.[2]) === bullet(first?.[2])) list.tight = false;
    const task = /^\[([ xX])\] +/.exec(own[0] ?? "");
    if (task) own[0] = (own[0] ?? "").slice(task[0].length);
    list.items.push({ checked: task ? task[1] !== " " : null, blocks: parse(own, depth + 1) });
  }
  return [list, at];
}

function cellsOf(row: string): string[] {
  return row.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/, MOST_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
