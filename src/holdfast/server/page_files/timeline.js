// The timeline: takes entries, oldest first, and keeps the page in step with them. Knows kinds of entries, never an agent.

import { ToolNode } from "./tools.js";
import { count, duration, element, firstLine, money, number, plain, prose, sentence, text } from "./words.js";

const MOST_ITEMS = 3000;
const MOST_LIVE = 64 * 1024;
const SESSIONS = {
  "continued": "session continued",
  "rebuilt": "session rebuilt from the thread",
  "handed-over": "the transcript handed over",
};
const FILES = {
  "kept": "files kept", "snapshot": "files kept by a snapshot", "workspace": "files as at the start", "empty": "no files",
};
const STAGES = {
  started: "getting a box", box: "preparing the agent", provisioned: "starting the agent",
  runner: "waiting for the agent’s first output",
};
const BOX_LOST = { box_gone: "is gone", box_stopped: "was stopped or killed" };
const ENDINGS = { completed: "✓", failed: "✗", cancelled: "■", orphaned: "✗" };

// Returns the words for a name from an entry, or an empty string.
const known = (words, name) => (Object.hasOwn(words, name) ? words[name] : "");

export class Timeline {
  constructor(root, thread) {
    this.root = root;
    this.thread = thread;
    this.runs = new Map();
    this.run = null;
    this.boxes = new Set();
    this.entries = 0;
    this.left = 0;
    this.firstPrompt = "";
    this.began = null;
    this.latest = 0;
    this.calls = new Map();
    this.live = null;
  }

  get status() {
    if (!this.run) return "idle";
    return this.run.status || "running";
  }

  // In words, or null if nothing is known. A call without a price is never counted as one that cost nothing.
  get cost() {
    const runs = [...this.runs.values()];
    const unpriced = runs.some((run) => run.unpriced);
    const costs = runs.map((run) => (run.unpriced ? run.counted : run.counted ?? run.cost)).filter((cost) => cost !== null);
    const dollars = costs.reduce((sum, cost) => sum + cost, 0);
    if (unpriced) return dollars ? `at least ${money(dollars)}` : "unknown";
    return costs.length ? money(dollars) : null;
  }

  doing(now) {
    if (!this.run || this.run.status) return "";
    const doing = this.run.installing ? `installing ${this.run.installing}` : STAGES[this.run.stage] ?? "working";
    return `${doing} · ${duration(Math.floor(Math.max(0, now - this.run.began) / 1000) * 1000)}`;
  }

  take(entry) {
    const payload = typeof entry?.payload === "object" && entry.payload ? entry.payload : {};
    const kind = text(payload.type);
    const dot = kind.lastIndexOf(".");
    const family = kind.slice(0, Math.max(dot, 0));
    const name = kind.slice(dot + 1);
    const ts = number(entry?.ts) ?? 0;
    if (name !== "delta" && kind !== "signal.run.heartbeat") this.entries += 1;
    if (kind === "chat") this.#chat(payload, ts);
    else if (family === "signal.run") this.#signal(name, payload, ts);
    else if (family === "signal.model") this.#model(name, payload, ts);
    else if (family && !kind.startsWith("signal.")) this.#agent(name, payload, ts);
  }

  // --- what people said ---

  #chat(payload, ts) {
    const said = plain(payload.text).trim();
    const role = text(payload.role) || "user";
    if (role === "user" && !this.firstPrompt) this.firstPrompt = firstLine(said);
    const tag = payload.interrupt === true ? "interrupts" : payload.queued === true ? "queued" : role === "user" ? "" : firstLine(role);
    this.#settle();
    this.#add("prompt", ts, said, tag ? element("span", "tag", tag) : null);
  }

  // --- what Holdfast did ---

  #signal(name, payload, ts) {
    const run = this.#runOf(payload, ts);
    if (name === "started") {
      run.agent = firstLine(payload.agent);
      run.model = firstLine(payload.model);
      run.resumes = text(payload.resumes);
      run.provider = firstLine(payload.provider);
    } else if (name === "box") {
      run.box = firstLine(payload.box);
      run.files = text(payload.files);
      run.provider = firstLine(payload.provider) || run.provider;
      run.isolation = firstLine(payload.isolation);
      run.boxTook = number(payload.ms);
      run.stage = "box";
      if (run.box) this.boxes.add(run.box);
    } else if (name === "installing") {
      run.installing = number(payload.ms) === null ? firstLine(payload.what) : "";
    } else if (name === "provisioned") {
      run.installing = "";
      run.session = text(payload.session);
      run.version = firstLine(payload.version);
      run.stage = "provisioned";
      this.#announce(run, ts);
    } else if (name === "runner") {
      run.stage = "runner";
    } else if (name === "cancel_requested" && payload.interrupt === true) {
      run.interrupted = true;
    } else if (name === "cancel_requested") {
      run.interrupted = false;
      this.#add("remark warning", ts, "■ asked to stop");
    } else if (name === "finished") {
      this.#finish(run, payload, ts);
    }
  }

  // What the server counted is better known than what the agent says.
  #model(name, payload, ts) {
    const run = this.runs.get(text(payload.run));
    if (!run) return;
    const cost = number(payload.cost);
    if (name === "call" && cost !== null) run.counted = (run.counted ?? 0) + cost;
    else if (name === "call") run.unpriced += 1;
    if (name === "failover") {
      const then = text(payload.to) ? `going on with ${firstLine(payload.to)}` : "no other model is left";
      this.#add("remark warning", ts, `⇄ ${firstLine(payload.model)} gave no answer (${firstLine(payload.reason)}): ${then}`);
    }
    if (name === "budget") {
      const isReached = payload.state === "reached" || (number(payload.spent) ?? 0) >= (number(payload.limit) ?? Infinity);
      const state = isReached ? "is used up" : "is nearly used up";
      const remark = `! the budget of this ${firstLine(payload.scope)} ${state}`;
      if (remark !== run.budget) this.#add("remark warning", ts, remark);
      run.budget = remark;
    }
  }

  #runOf(payload, ts) {
    const id = text(payload.run);
    let run = this.runs.get(id);
    if (!run) {
      run = {
        id, began: ts, ended: null, agent: "", model: "", version: "", resumes: "", box: "", provider: "", isolation: "", files: "",
        session: "", boxTook: null, stage: "started", installing: "", status: "", cost: null, counted: null, unpriced: 0, budget: "", announced: false, interrupted: false,
      };
      this.runs.set(id, run);
      this.run = run;
      this.began ??= ts;
    }
    return run;
  }

  #announce(run, ts) {
    if (run.announced) return;
    run.announced = true;
    const took = run.boxTook === null ? "" : duration(run.boxTook);
    if (this.#takesUp(run)) {
      const details = [known(SESSIONS, run.session), known(FILES, run.files), took].filter(Boolean);
      const where = run.box ? `↻ resumed in box ${run.box}` : "↻ resumed";
      const by = run.session === "handed-over" ? ` by ${run.agent}` : "";
      this.#mark("resumed", ts, where + by, details);
      return;
    }
    const who = [run.agent || "agent", run.version].filter(Boolean).join(" ");
    const box = run.box ? `in box ${run.box}, ${run.provider}${run.isolation ? ` (${run.isolation})` : ""}` : "";
    const rest = [run.model, box, took, known(SESSIONS, run.session)].filter(Boolean);
    this.#add("who", ts, element("b", "", `● ${who}`), rest.map((each) => ` · ${each}`).join(""));
  }

  #finish(run, payload, ts) {
    if (run.status) return;
    this.#settle();
    this.#announce(run, ts);
    const status = Object.hasOwn(ENDINGS, payload.status) ? payload.status : "failed";
    run.status = status;
    run.ended = ts;
    run.cost = number(payload.usage?.cost) ?? run.cost;
    for (const { tool } of this.calls.values()) tool.end({ status: "interrupted" }, null);
    this.calls.clear();
    const error = sentence(payload.error?.message);
    const hint = firstLine(payload.error?.hint);
    const tally = [count(this.boxes.size, "box", "boxes"), count(this.entries, "entry", "entries")];
    if (this.cost !== null) tally.push(this.cost === "unknown" ? "cost unknown" : this.cost);
    if (status === "orphaned") {
      const code = payload.error?.code;
      const said = run.box && Object.hasOwn(BOX_LOST, code ?? "");
      const lost = said ? `✗ box ${run.box} ${BOX_LOST[code]}` : `✗ the run in box ${run.box} was lost`;
      const what = run.box ? lost : "✗ the run was lost before it had a box";
      const why = said ? "" : [error, hint].filter(Boolean).join(" · ");
      this.#mark("lost", ts, what, [`${count(this.entries, "entry", "entries")} are safe on the thread`], why);
      return;
    }
    const took = duration(ts - this.#chainBegan(run));
    const joined = status === "completed" ? "in" : "after";
    const said = status === "cancelled" && run.interrupted ? "interrupted" : status;
    this.#mark(status, ts, `${ENDINGS[status]} ${said} ${joined} ${took}`, tally, [error, hint].filter(Boolean).join(" · "));
  }

  // Whether it continues unfinished work, and does not merely follow another run.
  #takesUp(run) {
    return run.resumes !== "" && this.runs.get(run.resumes)?.status !== "completed";
  }

  #chainBegan(run) {
    const seen = new Set();
    let first = run;
    while (this.#takesUp(first) && this.runs.has(first.resumes) && !seen.has(first.id)) {
      seen.add(first.id);
      first = this.runs.get(first.resumes);
    }
    return first.began;
  }

  // --- what the agent did ---

  #agent(name, payload, ts) {
    const run = this.run;
    if (run && !run.status) {
      if (["assistant", "call", "tool", "delta"].includes(name)) run.stage = "";
      this.#announce(run, ts);
    }
    if (name === "delta") this.#delta(payload, ts);
    else if (name === "assistant") this.#assistant(payload, ts);
    else if (name === "call") this.#call(payload, ts);
    else if (name === "tool") this.#tool(payload, ts);
    else if (name === "retry") {
      const attempt = number(payload.attempt);
      this.#add("remark warning", ts, `⟳ retrying${attempt === null ? "" : ` (${attempt})`}: ${sentence(payload.message)}`);
    } else if (name === "compaction") {
      this.#add("thinking", ts, folded("≡ context summarised: ", payload.summary));
    } else if (name === "notice") {
      const serious = payload.level === "warning" || payload.level === "error";
      this.#add(serious ? "remark warning" : "remark", ts, `${serious ? "!" : "i"} ${sentence(payload.text)}`);
    }
  }

  #delta(payload, ts) {
    if (!this.live) this.live = { text: "", thinking: "", prose: null, folded: null };
    const live = this.live;
    if (text(payload.thinking)) {
      live.thinking = (live.thinking + payload.thinking).slice(-MOST_LIVE);
      live.folded ??= this.#add("thinking", ts, folded("∴ ", ""));
      fold(live.folded.firstChild, "∴ ", live.thinking);
    }
    if (text(payload.text)) {
      live.text = (live.text + payload.text).slice(-MOST_LIVE);
      live.prose ??= this.#add("prose live", ts);
      live.prose.replaceChildren(...prose(live.text));
    }
  }

  // Replaces its live text in place, so that nothing jumps.
  #assistant(payload, ts) {
    const live = this.live ?? {};
    this.live = null;
    const cost = number(payload.usage?.cost);
    if (this.run && cost !== null) this.run.cost = (this.run.cost ?? 0) + cost;
    const thinking = text(payload.thinking).trim();
    if (thinking) {
      const body = live.folded ?? this.#add("thinking", ts, folded("∴ ", ""));
      fold(body.firstChild, "∴ ", thinking);
      if (!live.folded && live.prose) putBefore(body.parentElement, live.prose.parentElement);
    } else {
      live.folded?.parentElement.remove();
    }
    const said = text(payload.text).trim();
    if (said) {
      const body = live.prose ?? this.#add("prose", ts);
      body.parentElement.classList.remove("live");
      body.replaceChildren(...prose(said), ...(payload.partial === true ? [element("p", "cut", "cut off here")] : []));
    } else {
      live.prose?.parentElement.remove();
    }
  }

  // Ends live text that no complete message followed.
  #settle() {
    this.live?.prose?.parentElement.classList.remove("live");
    this.live = null;
  }

  #call(payload, ts) {
    const tool = new ToolNode(payload.name, payload.arguments);
    this.#add("call", ts, tool.node);
    this.calls.set(JSON.stringify(payload.call ?? null), { tool, ts });
  }

  #tool(payload, ts) {
    const key = JSON.stringify(payload.call ?? null);
    let begun = this.calls.get(key);
    this.calls.delete(key);
    if (!begun) {
      begun = { tool: new ToolNode(payload.name, payload.arguments), ts: null };
      this.#add("call", ts, begun.tool.node);
    }
    begun.tool.end(payload, number(payload.ms) ?? (begun.ts === null ? null : ts - begun.ts));
  }

  // --- nodes ---

  #add(kind, ts, ...children) {
    const body = element("div", "body", ...children);
    this.#append(element("article", `item ${kind}`, this.#when(ts), body));
    return body;
  }

  #mark(kind, ts, said, details, below = "") {
    const body = element("div", "body", element("b", "", said), ...details.map((each) => element("span", "", each)), below ? element("code", "", below) : null);
    const node = element("article", `mark ${kind}`, this.#when(ts), body);
    this.#append(node);
    // It goes right below the run that it continues, and above the prompts for it.
    if (kind === "resumed") while (node.previousElementSibling?.classList.contains("prompt")) putBefore(node, node.previousElementSibling);
  }

  #when(ts) {
    const node = element("time", "when");
    if (ts > 0 && ts < 8.64e15) {
      // Entries come in order, but from several clocks. The shown time never goes back; the title has the real one.
      this.latest = Math.max(this.latest, ts);
      node.append(this.began !== null && this.latest >= this.began ? `+${duration(this.latest - this.began).replace(" ", "\u202f")}` : "");
      node.dateTime = new Date(ts).toISOString();
      node.title = new Date(ts).toLocaleString();
    }
    return node;
  }

  #append(node) {
    this.root.append(node);
    while (this.root.childElementCount > MOST_ITEMS) {
      this.root.firstElementChild.remove();
      this.left += 1;
    }
  }
}

// Puts a node above another and gives it that one's time, so that times ascend down the page.
function putBefore(node, other) {
  other.before(node);
  node.querySelector(".when").textContent = other.querySelector(".when").textContent;
}

function folded(lead, value) {
  const node = element("details", "", element("summary"), element("div", "more"));
  fold(node, lead, value);
  return node;
}

function fold(node, lead, value) {
  const shown = plain(value).trim();
  const [first, ...more] = shown.split("\n");
  node.firstChild.replaceChildren(`${lead}${first}${more.length ? ` (${more.length + 1} lines)` : ""}`);
  node.lastChild.replaceChildren(shown);
}
