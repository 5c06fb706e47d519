// Text that an agent wrote, made fit to be shown: without control sequences, and without characters that reorder it. Also how
// durations, money and counts are written. Pure.

export type Fields = Record<string, unknown>;

export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const number = (value: unknown): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);
export const isObject = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
export const fields = (value: unknown): Fields => (isObject(value) ? value : {});

/** The words for a name of an entry, or an empty string. Only own properties count: a name may be "constructor". */
export const known = (words: Record<string, string>, name: unknown): string =>
  typeof name === "string" && Object.hasOwn(words, name) ? (words[name] ?? "") : "";

// Turns the direction of what follows: a file name could be made to read as another.
const TURNING = /[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g;
// eslint-disable-next-line no-control-regex
const SEQUENCES = /(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)|\x1b(?![[\]PX^_])[ -/]{0,4}[0-~]/g;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

export function plain(value: unknown): string {
  let shown = text(value).replaceAll("\r\n", "\n").replace(SEQUENCES, "");
  // A bar that was drawn over itself: its last state is what a terminal would show.
  if (shown.includes("\r")) {
    shown = shown.split("\n").map((line) => line.split("\r").filter(Boolean).at(-1) ?? "").join("\n");
  }
  return shown.replace(CONTROLS, "").replace(TURNING, "\ufffd");
}

export function linesOf(value: unknown): string[] {
  return plain(value).split("\n").map((line) => line.trim()).filter(Boolean);
}

export function firstLine(value: unknown): string {
  const lines = linesOf(text(value).slice(0, 20_000));
  return lines.length > 1 ? `${lines[0]} …` : (lines[0] ?? "");
}

/** What went wrong, in words: providers answer in JSON, of which one sentence is for people. */
export function sentence(value: unknown): string {
  const shown = firstLine(value);
  const whole = plain(value);
  const begin = whole.indexOf("{");
  if (begin < 0) return shown;
  try {
    const told: unknown = JSON.parse(whole.slice(begin, whole.lastIndexOf("}") + 1));
    const outer = fields(told);
    const inner = [fields(outer.error).message, outer.message, outer.detail, outer.error].find((each) => text(each).trim());
    if (!inner) return shown;
    const lead = whole.slice(0, begin).replace(/[\s:]+$/, "").trim();
    return [firstLine(lead), firstLine(inner)].filter(Boolean).join(": ");
  } catch {
    return shown;
  }
}

export function duration(milliseconds: number): string {
  if (milliseconds < 950) return `${Math.max(0, Math.round(milliseconds))} ms`;
  if (milliseconds < 59_950) return `${(milliseconds / 1000).toFixed(1)} s`;
  return clock(milliseconds);
}

export function clock(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** How long ago, in one unit. */
export function age(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

export function money(dollars: number): string {
  if (dollars > 0 && dollars < 0.01) return `$${dollars.toFixed(4)}`;
  return `$${dollars.toFixed(2)}`;
}

export function bytes(amount: number): string {
  if (amount < 1000) return `${amount} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let value = amount;
  let unit = "B";
  for (const next of units) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function tokens(amount: number): string {
  if (amount < 1000) return String(amount);
  if (amount < 1_000_000) return `${(amount / 1000).toFixed(amount < 10_000 ? 1 : 0)}k`;
  return `${(amount / 1_000_000).toFixed(1)}M`;
}

export const count = (amount: number, one: string, many: string): string =>
  amount === 1 ? `1 ${one}` : `${amount.toLocaleString("en")} ${many}`;

export interface CountedCost { cost: number; unpriced: number; calls?: number }

/** A call without a price is never counted as one that cost nothing. */
export function describeCost(cost: CountedCost | null | undefined): string {
  if (!cost) return "";
  if (cost.unpriced) return cost.cost ? `at least ${money(cost.cost)}` : "unknown";
  return money(cost.cost);
}
