// A tool call as one line that opens: what it is shows in the shape of its arguments, so no agent has to be known here.

import { duration, element, firstLine, number, plain, terminal, text } from "./words.js";

const COMMANDS = ["command", "cmd", "script"];
const PATHS = ["path", "file_path", "filePath", "filename", "file", "notebook_path"];
const BEFORE = ["oldText", "old_string", "oldString", "old_str", "old"];
const AFTER = ["newText", "new_string", "newString", "new_str", "new"];
const CONTENTS = ["content", "contents", "file_text", "text"];
const PATCHES = ["patch", "input", "patchText", "diff"];
const SOUGHT = ["pattern", "query", "url", "regex", "glob"];
const EXIT = /^\W*(?:(?:command|process)\s+)?(?:exited with (?:exit )?(?:code|status)|exit[ _]?(?:code|status)):?\s*(-?\d+)\W*$/i;
const ERROR = /\b(?:errors?|fatal|failed|failure|panic(?:ked)?|exception|not found|no such file|permission denied|cannot|can't)\b|^(?:FAIL|ERR!|E\s)|\w(?:Error|Exception):/i;
const SHOWN_LINES = 400;
const SHORT = 60;
const SHOWN_TEXT = 64 * 1024;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const pick = (values, names) => names.map((name) => values[name]).find((value) => typeof value === "string");
const short = (path) => firstLine(path).replace(/^\/workspace\//, "");

// {icon, what, diff: [[sign, line], …] or null}
export function describe(name, given) {
  let values = isObject(given) ? given : {};
  if (typeof given === "string" && given.includes("*** Begin Patch")) values = { patch: given };
  const command = commandOf(values);
  if (command) return { icon: "$", what: firstLine(command), diff: null, full: command };
  const path = pick(values, PATHS);
  const patch = PATCHES.map((each) => values[each]).find((each) => typeof each === "string" && /\*\*\* Begin Patch|^(?:--- |diff |@@ )/.test(each));
  if (patch) {
    const named = [...patch.matchAll(/^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\+\+\+ (?:b\/)?(\S+)/gm)].map((each) => each[1] ?? each[2]);
    const diff = patch.split("\n").filter((line) => !/^(\*\*\*|---|\+\+\+|diff |index )/.test(line))
      .map((line) => [line[0] === "+" || line[0] === "-" ? line[0] : " ", line.slice(1)]);
    return { icon: "✎", what: named.map(short).join(", ") || short(path ?? "") || "a patch", diff };
  }
  if (Array.isArray(values.changes) && values.changes.some((each) => text(each?.path))) {
    return { icon: "✎", what: values.changes.map((each) => short(text(each?.path))).filter(Boolean).join(", "), diff: null };
  }
  if (path) {
    const edits = Array.isArray(values.edits) ? values.edits.filter(isObject) : [values];
    const changed = edits.filter((each) => pick(each, BEFORE) !== undefined || pick(each, AFTER) !== undefined);
    if (changed.length) {
      return { icon: "✎", what: short(path), diff: changed.flatMap((each) => compare(pick(each, BEFORE) ?? "", pick(each, AFTER) ?? "")) };
    }
    const content = pick(values, CONTENTS);
    if (content !== undefined) {
      return { icon: "✎", what: short(path), diff: content.replace(/\n$/, "").split("\n").map((line) => ["+", line]) };
    }
  }
  const said = path || pick(values, SOUGHT);
  const label = firstLine(name) || "tool";
  if (said) return { icon: "·", what: `${label} ${short(said)}`, diff: null };
  const rest = given && Object.keys(values).length ? JSON.stringify(given).slice(0, 200) : "";
  return { icon: "·", what: `${label} ${firstLine(rest)}`.trim(), diff: null };
}

function commandOf(values) {
  const value = COMMANDS.map((name) => values[name]).find((each) => each !== undefined);
  if (Array.isArray(value)) {
    const words = value.map(String);
    return words.length > 2 && /(^|\/)(ba|z)?sh$/.test(words[0]) && words[1].startsWith("-") ? words[2] : words.join(" ");
  }
  return text(value);
}

function compare(before, after) {
  const old = before.split("\n");
  const fresh = after.split("\n");
  const lead = [];
  const tail = [];
  while (old.length && fresh.length && old[0] === fresh[0]) { lead.push([" ", old.shift()]); fresh.shift(); }
  while (old.length && fresh.length && old.at(-1) === fresh.at(-1)) { tail.unshift([" ", old.pop()]); fresh.pop(); }
  if (tail.length && tail.at(-1)[1] === "") tail.pop(); // after the newline that both end with
  return [...lead.slice(-3), ...old.map((line) => ["-", line]), ...fresh.map((line) => ["+", line]), ...tail.slice(0, 3)];
}

export function summarize(icon, result, status) {
  if (status === "interrupted") return "interrupted";
  const lines = plain(result).split("\n").map((line) => line.trim()).filter(Boolean);
  if (icon === "$") {
    let code = "";
    for (let match; lines.length && (match = EXIT.exec(lines.at(-1)));) {
      code = match[1] === "0" ? "" : `exit ${match[1]}`;
      lines.pop();
    }
    const last = lines.at(-1) === "(no output)" ? "" : lines.at(-1) ?? "";
    // Where it failed, what it failed of; else the last line, where programs say how it went.
    const told = status === "error" ? lines.find((line) => ERROR.test(line)) ?? last : last;
    return [told, code].filter(Boolean).join(" · ") || (status === "error" ? "failed" : "");
  }
  if (status === "error") return lines[0] ?? "failed";
  if (icon === "✎") return "";
  return lines.length > 1 ? `${lines.length} lines` : lines[0] ?? "";
}

// The node of a call. It is made when the call begins, and filled in place when it ends.
export class ToolNode {
  constructor(name, given) {
    this.known = describe(name, given);
    this.icon = element("span", "icon", this.known.icon);
    this.what = element("span", this.known.icon === "✎" ? "what edit" : "what", this.known.what);
    this.result = element("span", "result");
    this.took = element("span", "took");
    this.more = element("div", "more");
    this.node = element("details", "tool", element("summary", "", this.icon, this.what, this.result, this.took), this.more);
    this.what.title = this.known.what;
    this.given = given;
    this.#fill(null);
    this.running();
  }

  running() {
    this.node.classList.add("running");
    this.result.replaceChildren("…");
  }

  end(payload, took) {
    const status = payload.status === "error" || payload.status === "interrupted" ? payload.status : "ok";
    this.node.classList.remove("running");
    this.node.classList.toggle("error", status !== "ok");
    const said = summarize(this.known.icon, text(payload.result), status);
    const shown = status === "ok" ? said : `✗ ${said}`;
    this.result.replaceChildren(...(this.known.icon === "✎" && status === "ok" ? this.#changes() : [shown]));
    this.result.title = shown;
    if (number(took) !== null) this.took.replaceChildren(duration(took));
    this.#fill(text(payload.result), payload.truncated === true);
  }

  #changes() {
    const signs = (this.known.diff ?? []).map(([sign]) => sign);
    const added = signs.filter((sign) => sign === "+").length;
    const removed = signs.filter((sign) => sign === "-").length;
    return this.known.diff ? [element("span", "plus", `+${added}`), " ", element("span", "minus", `−${removed}`)] : [];
  }

  #fill(result, truncated = false) {
    const parts = [];
    if (this.known.diff) {
      parts.push(diffNode(this.known.diff));
    } else if (this.known.full && this.known.full.trim().length <= SHORT && !this.known.full.trim().includes("\n")) {
      // The line itself says it all.
    } else if (this.known.full) {
      parts.push(element("pre", "arguments", plain(this.known.full)));
    } else if (this.given !== undefined && this.given !== null) {
      parts.push(element("pre", "arguments", plain(JSON.stringify(this.given, null, 2)).slice(0, SHOWN_TEXT)));
    }
    if (result) {
      const output = element("pre", "output", terminal(result.slice(0, SHOWN_TEXT)));
      parts.push(output);
      if (truncated || result.length > SHOWN_TEXT) parts.push(element("p", "small", "output shortened; the thread has all of it"));
    } else if (result === "") {
      parts.push(element("p", "small", "no output"));
    }
    this.more.replaceChildren(...parts);
  }
}

function diffNode(lines) {
  const node = element("div", "diff");
  for (const [sign, line] of lines.slice(0, SHOWN_LINES)) {
    const kind = sign === "+" ? "plus" : sign === "-" ? "minus" : "";
    node.append(element("div", kind, `${sign === "-" ? "−" : sign} ${plain(line)}`));
  }
  if (lines.length > SHOWN_LINES) node.append(element("div", "", `… ${lines.length - SHOWN_LINES} more lines`));
  return node;
}
