// A unified diff, as git writes it, in files, hunks and numbered lines. Pure.

import { plain } from "./text.ts";
import type { Sign } from "./tools.ts";

export interface PatchLine { sign: Sign; text: string; old: number | null; fresh: number | null }
export interface Hunk { head: string; lines: PatchLine[] }
export interface PatchFile { path: string; hunks: Hunk[]; added: number; removed: number; note: string }

const MOST_LINES = 50_000;

export function parsePatch(patch: string): PatchFile[] {
  const files: PatchFile[] = [];
  let file: PatchFile | null = null;
  let hunk: Hunk | null = null;
  let old = 0;
  let fresh = 0;
  let lines = 0;
  for (const line of patch.split("\n")) {
    if (line.startsWith("diff --git ")) {
      file = { path: nameOf(line), hunks: [], added: 0, removed: 0, note: "" };
      files.push(file);
      hunk = null;
      continue;
    }
    if (!file) continue;
    const head = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(line);
    if (head) {
      old = Number(head[1]);
      fresh = Number(head[2]);
      hunk = { head: plain(line), lines: [] };
      file.hunks.push(hunk);
    } else if (!hunk) {
      if (line.startsWith("+++ ") && !line.endsWith("/dev/null")) file.path = unquoted(line.slice(4)).replace(/^b\//, "");
      else if (/^(new file|deleted file|rename |Binary files|GIT binary|old mode|new mode)/.test(line)) file.note = plain(line).replace(/^(new|deleted) file mode \d+$/, "$1 file").replace(/^old mode (\d+)$/, "mode was $1").replace(/^new mode (\d+)$/, "mode is $1");
    } else if (line.startsWith("+") || line.startsWith("-") || line.startsWith(" ")) {
      const sign = line[0] as Sign;
      lines += 1;
      if (sign === "+") file.added += 1;
      if (sign === "-") file.removed += 1;
      if (lines <= MOST_LINES) {
        hunk.lines.push({ sign, text: plain(line.slice(1)), old: sign === "+" ? null : old, fresh: sign === "-" ? null : fresh });
      }
      if (sign !== "+") old += 1;
      if (sign !== "-") fresh += 1;
    }
  }
  return files;
}

function nameOf(line: string): string {
  const names = line.slice("diff --git ".length);
  const at = names.lastIndexOf(" b/");
  return plain(unquoted(at < 0 ? names : names.slice(at + 1)).replace(/^b\//, ""));
}

const unquoted = (name: string): string => name.replace(/^"(.*)"$/, "$1").replace(/\t$/, "");

export interface LineComment { path: string; line: number; side: "old" | "new"; code: string; text: string }

/** Comments on lines as one prompt for the agent. */
export function describeComments(comments: readonly LineComment[]): string {
  const parts = comments.map((each) => {
    const where = `${each.path}:${each.line}${each.side === "old" ? " (the line that was removed)" : ""}`;
    return `${where}\n> ${each.code.trim().slice(0, 300)}\n${each.text.trim()}`;
  });
  const lead = comments.length === 1 ? "A comment on your changes:" : "Comments on your changes:";
  return [lead, ...parts].join("\n\n");
}
