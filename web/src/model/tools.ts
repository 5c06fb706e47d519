// A tool call as one line that opens: what it is shows in the shape of its arguments, so no agent has to be known here. Pure.

import { type Fields, fields, firstLine, isObject, linesOf, text } from "./text.ts";

export type Sign = "+" | "-" | " ";
export type DiffLine = readonly [Sign, string];
export interface Todo { text: string; state: "done" | "doing" | "open" }
export interface Described {
  icon: string;
  what: string;
  diff: DiffLine[] | null;
  /** The whole command, where the line shows the first of it. */
  full: string;
  todos: Todo[] | null;
  /** Paths that it writes. */
  paths: string[];
  /** It starts a sub-agent, and its result is prose. */
  isAgent: boolean;
}

const COMMANDS = ["command", "cmd", "script"];
const PATHS = ["path", "file_path", "filePath", "filename", "file", "notebook_path"];
const BEFORE = ["oldText", "old_string", "oldString", "old_str", "old"];
const AFTER = ["newText", "new_string", "newString", "new_str", "new"];
const CONTENTS = ["content", "contents", "file_text", "text"];
const PATCHES = ["patch", "input", "patchText", "diff"];
const SOUGHT = ["pattern", "query", "url", "regex", "glob"];
const PLANS = ["todos", "plan", "steps", "items"];
const TASKS = ["prompt", "message", "task", "instructions"];
const KINDS = ["subagent_type", "agent_type", "subagent"];
const AGENTS = /^(?:task|agent|sub_?agent|spawn_agent|delegate(?:_task)?)$/i;
const EXIT = /^\W*(?:(?:command|process)\s+)?(?:exited with (?:exit )?(?:code|status)|exit[ _]?(?:code|status)):?\s*(-?\d+)\W*$/i;
const ERROR = /\b(?:errors?|fatal|failed|failure|panic(?:ked)?|exception|not found|no such file|permission denied|cannot|can't)\b|^(?:FAIL|ERR!|E\s)|\w(?:Error|Exception):/i;
const MOST_TODOS = 100;

const pick = (values: Fields, names: string[]): string | undefined =>
  names.map((name) => (Object.hasOwn(values, name) ? values[name] : undefined)).find((value): value is string => typeof value === "string");
const short = (path: string): string => firstLine(path).replace(/^\/workspace\//, "");

export function describeCall(name: unknown, given: unknown): Described {
  const nothing = { diff: null, full: "", todos: null, paths: [], isAgent: false };
  let values = fields(given);
  if (typeof given === "string" && given.includes("*** Begin Patch")) values = { patch: given };
  const todos = todosOf(values);
  if (todos) {
    const done = todos.filter((each) => each.state === "done").length;
    return { ...nothing, icon: "☰", what: `plan: ${done} of ${todos.length} done`, todos };
  }
  const task = pick(values, TASKS);
  if (task && (AGENTS.test(text(name)) || pick(values, KINDS) !== undefined)) {
    const kind = firstLine(pick(values, KINDS));
    return { ...nothing, icon: "↳", what: `${kind || "sub-agent"}: ${firstLine(pick(values, ["description", "title"])) || firstLine(task)}`, full: task, isAgent: true };
  }
  const command = commandOf(values);
  if (command) return { ...nothing, icon: "$", what: firstLine(command), full: command };
  const path = pick(values, PATHS);
  const patch = PATCHES.map((each) => values[each])
    .find((each): each is string => typeof each === "string" && /\*\*\* Begin Patch|^(?:--- |diff |@@ )/.test(each));
  if (patch) {
    const named = [...patch.matchAll(/^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\+\+\+ (?:b\/)?(\S+)/gm)].map((each) => short(each[1] ?? each[2] ?? ""));
    const diff = patch.split("\n").filter((line) => !/^(\*\*\*|---|\+\+\+|diff |index )/.test(line))
      .map((line): DiffLine => [line[0] === "+" || line[0] === "-" ? line[0] : " ", line.slice(1)]);
    return { ...nothing, icon: "✎", what: named.join(", ") || short(path ?? "") || "a patch", diff, paths: named };
  }
  if (Array.isArray(values.changes) && values.changes.some((each) => text(fields(each).path))) {
    const paths = values.changes.map((each) => short(text(fields(each).path))).filter(Boolean);
    return { ...nothing, icon: "✎", what: paths.join(", "), paths };
  }
  if (path) {
    const edits = Array.isArray(values.edits) ? values.edits.filter(isObject) : [values];
    const changed = edits.filter((each) => pick(each, BEFORE) !== undefined || pick(each, AFTER) !== undefined);
    if (changed.length) {
      const diff = changed.flatMap((each) => compareLines(pick(each, BEFORE) ?? "", pick(each, AFTER) ?? ""));
      return { ...nothing, icon: "✎", what: short(path), diff, paths: [short(path)] };
    }
    const content = pick(values, CONTENTS);
    if (content !== undefined) {
      const diff = content.replace(/\n$/, "").split("\n").map((line): DiffLine => ["+", line]);
      return { ...nothing, icon: "✎", what: short(path), diff, paths: [short(path)] };
    }
  }
  const said = path || pick(values, SOUGHT);
  const label = firstLine(name) || "tool";
  if (said) return { ...nothing, icon: "·", what: `${label} ${short(said)}` };
  const rest = given && Object.keys(values).length ? JSON.stringify(given).slice(0, 200) : "";
  return { ...nothing, icon: "·", what: `${label} ${firstLine(rest)}`.trim() };
}

function todosOf(values: Fields): Todo[] | null {
  for (const name of PLANS) {
    const list = Object.hasOwn(values, name) ? values[name] : undefined;
    if (!Array.isArray(list) || !list.length) continue;
    const made = list.slice(0, MOST_TODOS).map((each): Todo | null => {
      const one = fields(each);
      const said = [one.content, one.step, one.text, one.title, one.description].map(text).find(Boolean);
      const state = text(one.status) || text(one.state);
      if (!said || !state) return null;
      return { text: firstLine(said), state: /^(?:completed|done|complete)$/.test(state) ? "done" : /^(?:in_?progress|doing|active)$/.test(state) ? "doing" : "open" };
    });
    if (made.every((each) => each !== null)) return made;
  }
  return null;
}

function commandOf(values: Fields): string {
  const value = COMMANDS.map((name) => (Object.hasOwn(values, name) ? values[name] : undefined)).find((each) => each !== undefined);
  if (Array.isArray(value)) {
    const words = value.map(String);
    return words.length > 2 && /(^|\/)(ba|z)?sh$/.test(words[0] ?? "") && (words[1] ?? "").startsWith("-") ? (words[2] ?? "") : words.join(" ");
  }
  return text(value);
}

function compareLines(before: string, after: string): DiffLine[] {
  const old = before.split("\n");
  const fresh = after.split("\n");
  const most = Math.min(old.length, fresh.length);
  let lead = 0;
  while (lead < most && old[lead] === fresh[lead]) lead += 1;
  let tail = 0;
  while (tail < most - lead && old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]) tail += 1;
  const same = (lines: string[]): DiffLine[] => lines.map((line) => [" ", line]);
  const ending = old.slice(old.length - tail);
  if (ending.at(-1) === "") ending.pop(); // after the newline that both end with
  return [
    ...same(old.slice(Math.max(0, lead - 3), lead)),
    ...old.slice(lead, old.length - tail).map((line): DiffLine => ["-", line]),
    ...fresh.slice(lead, fresh.length - tail).map((line): DiffLine => ["+", line]),
    ...same(ending.slice(0, 3)),
  ];
}

export type ToolStatus = "running" | "ok" | "error" | "interrupted";

export function summarize(icon: string, result: unknown, status: ToolStatus): string {
  if (status === "interrupted") return "interrupted";
  const lines = linesOf(text(result).slice(-200_000));
  if (icon === "$") {
    let code = "";
    for (let match; lines.length && (match = EXIT.exec(lines.at(-1) ?? ""));) {
      code = match[1] === "0" ? "" : `exit ${match[1]}`;
      lines.pop();
    }
    const last = lines.at(-1) === "(no output)" ? "" : (lines.at(-1) ?? "");
    // Where it failed, what it failed of; else the last line, where programs say how it went.
    const told = status === "error" ? (lines.find((line) => ERROR.test(line)) ?? last) : last;
    return [told, code].filter(Boolean).join(" · ") || (status === "error" ? "failed" : "");
  }
  if (status === "error") return lines[0] ?? "failed";
  if (icon === "✎" || icon === "☰") return "";
  return lines.length > 1 ? `${lines.length} lines` : (lines[0] ?? "");
}
