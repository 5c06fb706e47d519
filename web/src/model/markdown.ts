// The Markdown that agents write in, as a tree of blocks: paragraphs, headings, lists, quotes, tables, fenced blocks; `code`,
// **strong**, *emphasis*. Links are shown with their address and lead nowhere. The tree has only text in it: whoever shows it
// makes nodes, never markup. Pure.

import { plain } from "./text.ts";

export interface Inline { kind: "text" | "code" | "strong" | "em"; text: string }
export interface ListItem { content: Inline[]; lists: List[] }
export interface List { kind: "list"; ordered: boolean; start: number; items: ListItem[] }
export type Block =
  | { kind: "paragraph" | "heading" | "quote"; content: Inline[] }
  | { kind: "rule" }
  | { kind: "code"; text: string }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | List;

const ITEM = /^(\s{0,12})(?:[-*+]|(\d{1,4})[.)])\s+(.*)$/;
const ROW = /^\s*\|.*\|\s*$/;
const RULE = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\[[^\]\n]{1,500}\]\([^)\s]{1,2000}\)|(?<![\w*])\*[^*\s][^*\n]*\*(?![\w*]))/;

export function parseMarkdown(value: unknown): Block[] {
  const found: Block[] = [];
  const parts = plain(value).trim().split(/^ {0,3}```[^\n]*\n?/m);
  parts.forEach((part, index) => {
    if (index % 2) found.push({ kind: "code", text: part.replace(/\n$/, "") });
    else found.push(...blocks(part.split("\n")));
  });
  return found;
}

function blocks(lines: string[]): Block[] {
  const found: Block[] = [];
  let at = 0;
  const whileLine = (fits: (line: string) => boolean): string[] => {
    const from = at;
    while (at < lines.length && fits(lines[at] ?? "")) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const heading = /^#{1,6} +(.+?)\s*#*$/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (heading) {
      found.push({ kind: "heading", content: inline(heading[1] ?? "") });
      at += 1;
    } else if (/^ {0,3}([-*_])(?: *\1){2,}\s*$/.test(line)) {
      found.push({ kind: "rule" });
      at += 1;
    } else if (ITEM.test(line)) {
      found.push(...lists(whileLine((each) => ITEM.test(each) || /^\s{2,}\S/.test(each))));
    } else if (line.startsWith(">")) {
      const quoted = whileLine((each) => each.startsWith(">")).map((each) => each.replace(/^> ?/, ""));
      found.push({ kind: "quote", content: inline(quoted.join("\n")) });
    } else if (ROW.test(line) && RULE.test(lines[at + 1] ?? "")) {
      const rows = whileLine((each) => ROW.test(each)).map(cells);
      found.push({ kind: "table", head: rows[0] ?? [], rows: rows.slice(2) });
    } else {
      const from = at;
      at += 1;
      whileLine((each) => each.trim() !== "" && !/^(?:#{1,6} |>|\s*\|)/.test(each) && !ITEM.test(each));
      found.push({ kind: "paragraph", content: inline(lines.slice(from, at).join("\n").trimEnd()) });
    }
  }
  return found;
}

// One list, its deeper items in lists within it. What is indented and no item goes on with the item above.
function lists(lines: string[]): List[] {
  const roots: List[] = [];
  const open: { depth: number; list: List; item: ListItem }[] = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      open.at(-1)?.item.content.push({ kind: "text", text: "\n" }, ...inline(line.trim()));
      continue;
    }
    const depth = (item[1] ?? "").length;
    while (open.length && (open.at(-1)?.depth ?? 0) > depth) open.pop();
    const ordered = item[2] !== undefined;
    const made: ListItem = { content: inline(item[3] ?? ""), lists: [] };
    const level = open.at(-1);
    if (level && level.depth === depth && level.list.ordered === ordered) {
      level.item = made;
      level.list.items.push(made);
      continue;
    }
    if (level && level.depth === depth) open.pop();
    const list: List = { kind: "list", ordered, start: ordered ? Number(item[2]) : 1, items: [made] };
    const parent = open.at(-1);
    if (parent) parent.item.lists.push(list);
    else roots.push(list);
    open.push({ depth, list, item: made });
  }
  return roots;
}

function cells(row: string): Inline[][] {
  return row.trim().replace(/^\||\|$/g, "").split("|").map((each) => inline(each.trim()));
}

export function inline(line: string): Inline[] {
  return line.split(INLINE).filter(Boolean).map((piece): Inline => {
    if (piece.length > 2 && piece.startsWith("`") && piece.endsWith("`")) return { kind: "code", text: piece.slice(1, -1) };
    if (piece.length > 4 && piece.startsWith("**") && piece.endsWith("**")) return { kind: "strong", text: piece.slice(2, -2) };
    if (piece.length > 2 && piece.startsWith("*") && piece.endsWith("*")) return { kind: "em", text: piece.slice(1, -1) };
    const link = /^\[([^\]]+)\]\(([^)\s]+)\)$/.exec(piece);
    if (link) return { kind: "text", text: link[1] === link[2] ? (link[1] ?? "") : `${link[1]} (${link[2]})` };
    return { kind: "text", text: piece };
  });
}
