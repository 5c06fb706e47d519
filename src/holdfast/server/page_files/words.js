// Text as nodes. Whatever an agent wrote goes in as text: nothing here, and nothing that uses it, makes markup of it.

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const text = (value) => (typeof value === "string" ? value : "");
export const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Turns the direction of what follows: a file name could be made to read as another.
const TURNING = /[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g;
// eslint-disable-next-line no-control-regex
const SEQUENCES = /(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)|\x1b(?![[\]PX^_])[ -/]{0,4}[0-~]/g;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

export function plain(value) {
  let shown = text(value).replaceAll("\r\n", "\n").replace(SEQUENCES, "");
  // A bar that was drawn over itself: its last state is what a terminal would show.
  if (shown.includes("\r")) shown = shown.split("\n").map((line) => line.split("\r").filter(Boolean).at(-1) ?? "").join("\n");
  return shown.replace(CONTROLS, "").replace(TURNING, "\ufffd");
}

export function firstLine(value) {
  const lines = plain(value).split("\n").map((line) => line.trim()).filter(Boolean);
  return lines.length > 1 ? `${lines[0]} …` : lines[0] ?? "";
}

// Paragraphs, headings, fenced blocks, `code` and **strong**: what agents write in, and no more.
export function prose(value) {
  const nodes = [];
  const parts = plain(value).trim().split(/^```[^\n]*\n?/m);
  parts.forEach((part, index) => {
    if (index % 2) {
      nodes.push(element("pre", "", part.replace(/\n$/, "")));
      return;
    }
    for (const paragraph of part.split(/\n{2,}/)) {
      const trimmed = paragraph.replace(/^\n+/, "").trimEnd();
      if (!trimmed) continue;
      const heading = /^#{1,4} ([^\n]+)$/.exec(trimmed);
      nodes.push(heading ? element("h3", "", ...inline(heading[1])) : element("p", "", ...inline(trimmed)));
    }
  });
  return nodes;
}

function inline(line) {
  return line.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((piece) => {
    if (piece.length > 2 && piece.startsWith("`")) return element("code", "", piece.slice(1, -1));
    if (piece.length > 4 && piece.startsWith("**")) return element("strong", "", piece.slice(2, -2));
    return document.createTextNode(piece);
  });
}

// Output of a terminal with its colours; every other sequence is taken out.
export function terminal(value) {
  const fragment = document.createDocumentFragment();
  let classes = [];
  // eslint-disable-next-line no-control-regex
  for (const piece of text(value).split(/(\x1b\[[0-9;]{0,64}m)/)) {
    if (piece.startsWith("\x1b[") && piece.endsWith("m")) {
      classes = styled(classes, piece.slice(2, -1));
      continue;
    }
    const shown = plain(piece);
    if (shown) fragment.append(classes.length ? element("span", classes.join(" "), shown) : shown);
  }
  return fragment;
}

function styled(classes, codes) {
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

export function duration(milliseconds) {
  if (milliseconds < 950) return `${Math.max(0, Math.round(milliseconds))} ms`;
  if (milliseconds < 59950) return `${(milliseconds / 1000).toFixed(1)} s`;
  return clock(milliseconds);
}

export function clock(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function money(dollars) {
  if (dollars > 0 && dollars < 0.01) return `$${dollars.toFixed(4)}`;
  return `$${dollars.toFixed(2)}`;
}

export const count = (amount, one, many) => (amount === 1 ? `1 ${one}` : `${amount.toLocaleString("en")} ${many}`);
