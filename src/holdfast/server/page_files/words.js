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

// The Markdown that agents write in: paragraphs, headings, lists, quotes, tables, fenced blocks; `code`, **strong**, *emphasis*
// and links, which are shown with their address and lead nowhere. All of it becomes nodes with text in them.
export function prose(value) {
  const nodes = [];
  const parts = plain(value).trim().split(/^ {0,3}```[^\n]*\n?/m);
  parts.forEach((part, index) => {
    if (index % 2) nodes.push(element("pre", "", part.replace(/\n$/, "")));
    else nodes.push(...blocks(part.split("\n")));
  });
  return nodes;
}

const ITEM = /^(\s{0,12})(?:[-*+]|(\d{1,4})[.)])\s+(.*)$/;
const ROW = /^\s*\|.*\|\s*$/;
const RULE = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;

function blocks(lines) {
  const nodes = [];
  let at = 0;
  const whileLine = (fits) => {
    const from = at;
    while (at < lines.length && fits(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^#{1,6} +(.+?)\s*#*$/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (heading) {
      nodes.push(element("h2", "", ...inline(heading[1])));
      at += 1;
    } else if (/^ {0,3}([-*_])(?: *\1){2,}\s*$/.test(line)) {
      nodes.push(element("hr"));
      at += 1;
    } else if (ITEM.test(line)) {
      nodes.push(...list(whileLine((each) => ITEM.test(each) || /^\s{2,}\S/.test(each))));
    } else if (line.startsWith(">")) {
      const quoted = whileLine((each) => each.startsWith(">")).map((each) => each.replace(/^> ?/, ""));
      nodes.push(element("blockquote", "", ...inline(quoted.join("\n"))));
    } else if (ROW.test(line) && RULE.test(lines[at + 1] ?? "")) {
      nodes.push(table(whileLine((each) => ROW.test(each))));
    } else {
      const from = at;
      at += 1;
      whileLine((each) => each.trim() && !/^(?:#{1,6} |>|\s*\|)/.test(each) && !ITEM.test(each));
      nodes.push(element("p", "", ...inline(lines.slice(from, at).join("\n").trimEnd())));
    }
  }
  return nodes;
}

// One list, its deeper items in lists within it. What is indented and no item goes on with the item above.
function list(lines) {
  const roots = [];
  const open = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      open.at(-1)?.item.append("\n", ...inline(line.trim()));
      continue;
    }
    const depth = item[1].length;
    while (open.length && open.at(-1).depth > depth) open.pop();
    const kind = item[2] === undefined ? "ul" : "ol";
    let level = open.at(-1);
    if (!level || level.depth < depth || level.list.localName !== kind) {
      if (level?.depth === depth) open.pop();
      const parent = open.at(-1);
      level = { depth, list: element(kind), item: null };
      if (kind === "ol" && item[2] !== "1") level.list.start = Number(item[2]);
      if (parent) parent.item.append(level.list);
      else roots.push(level.list);
      open.push(level);
    }
    level.item = element("li", "", ...inline(item[3]));
    level.list.append(level.item);
  }
  return roots;
}

function table(rows) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((each) => each.trim());
  const line = (row, kind) => element("tr", "", ...cells(row).map((each) => element(kind, "", ...inline(each))));
  const made = element("table", "", element("thead", "", line(rows[0], "th")), element("tbody", "", ...rows.slice(2).map((row) => line(row, "td"))));
  return element("div", "table", made);
}

function inline(line) {
  return line.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*|\[[^\]\n]{1,500}\]\([^)\s]{1,2000}\)|(?<![\w*])\*[^*\s][^*\n]*\*(?![\w*]))/).filter(Boolean).map((piece) => {
    if (piece.length > 2 && piece.startsWith("`")) return element("code", "", piece.slice(1, -1));
    if (piece.length > 4 && piece.startsWith("**")) return element("strong", "", piece.slice(2, -2));
    if (piece.length > 2 && piece.startsWith("*") && piece.endsWith("*")) return element("em", "", piece.slice(1, -1));
    const link = /^\[([^\]]+)\]\(([^)\s]+)\)$/.exec(piece);
    if (link) return document.createTextNode(link[1] === link[2] ? link[1] : `${link[1]} (${link[2]})`);
    return document.createTextNode(piece);
  });
}

// What went wrong, in words: providers answer in JSON, of which one sentence is for people.
export function sentence(value) {
  const shown = firstLine(value);
  const begin = plain(value).indexOf("{");
  if (begin < 0) return shown;
  try {
    const told = JSON.parse(plain(value).slice(begin, plain(value).lastIndexOf("}") + 1));
    const inner = [told?.error?.message, told?.message, told?.detail, told?.error].find((each) => typeof each === "string" && each.trim());
    if (!inner) return shown;
    const lead = plain(value).slice(0, begin).replace(/[\s:]+$/, "").trim();
    return [firstLine(lead), firstLine(inner)].filter(Boolean).join(": ");
  } catch {
    return shown;
  }
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
