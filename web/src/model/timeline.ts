// The timeline: takes the entries of a thread, oldest first, and keeps the view of them. Knows kinds of entries, never an agent,
// and trusts no field. Pure: what it makes are plain objects, which the components show.

import { type Entry, FAILOVERS, describeSignal } from "./entries.ts";
import { ItemList } from "./item_list.ts";
import type { ChildItem, Chunk, FoldedItem, Item, Made, PromptItem, ProseItem, QuestionItem, ToolItem } from "./items.ts";
import { Notebook } from "./notebook.ts";
import { BOX_LOST, ENDINGS, FILES, type Run, SESSIONS, STAGES, STATUSES, type Status, newRun } from "./run.ts";
import { SubAgents } from "./sub_agents.ts";
import { type Fields, clock, count, describeCost, duration, fields, firstLine, known, number, plain, sentence, text } from "./text.ts";
import { type Todo, type ToolStatus, describeCall, summarize } from "./tools.ts";
import { type Workflow, foldWorkflow } from "./workflow.ts";

const MOST_LIVE = 64 * 1024;
const MOST_CALLS = 1000;
const MOST_OPTIONS = 50;
/** The answer to a question that nobody has answered in time. */
const EXPIRED = "__expired__";
export interface BudgetSeen { scope: string; spent: number; limit: number; unit: string; reached: boolean }
const WORKFLOWS = { running: "running", needs_approval: "waiting", ok: "completed", failed: "failed", cancelled: "cancelled" } as const;

export class Timeline {
  readonly runs = new Map<string, Run>();
  run: Run | null = null;
  readonly boxes = new Set<string>();
  entries = 0;
  firstPrompt = "";
  todos: Todo[] = [];
  readonly touched = new Map<string, number>();
  /** Prompts that wait, by the id of their entry. */
  readonly waiting = new Map<string, string>();
  /** Numbers of the turns that a rewind has taken out of the conversation. */
  rewound: ReadonlySet<number> = new Set();
  canUndo = false;
  /** Tokens of the latest call: how full the model's context is. */
  context: number | null = null;
  contextModel = "";
  budget: BudgetSeen | null = null;
  checkpoints: { number: number; ts: number }[] = [];
  /** Its prompts are queued, and nothing else launches runs on it. */
  isSession = false;
  /** What this thread executes, if it is an execution of a workflow. */
  workflow: Workflow | null = null;

  readonly #items = new ItemList();
  readonly #notebook = new Notebook(this.#items);
  readonly #subAgents = new SubAgents(this.#items);
  readonly #seen = new Set<string>();
  readonly #calls = new Map<string, { key: string; ts: number }>();
  readonly #children = new Map<string, string>();
  /** Questions that wait for somebody: their items, by their ids. */
  readonly #questions = new Map<string, string>();
  readonly #waitingKeys = new Map<string, string>();
  #live: { text: string; thinking: string; prose: string; folded: string } | null = null;
  #undo: ReadonlySet<number>[] = [];

  get status(): Status {
    if (this.workflow) return WORKFLOWS[this.workflow.status];
    if (!this.run) return "idle";
    return (this.run.status || "running") as Status;
  }

  /** In words, or an empty string if nothing is known. */
  get cost(): string {
    const runs = [...this.runs.values()];
    const unpriced = runs.filter((run) => run.unpriced).length;
    const costs = runs.map((run) => (run.unpriced ? run.counted : (run.counted ?? run.cost))).filter((cost) => cost !== null);
    const dollars = costs.reduce((sum, cost) => sum + cost, 0);
    if (!costs.length && !unpriced) return "";
    return describeCost({ cost: dollars, unpriced });
  }

  doing(now: number): string {
    if (!this.run || this.run.status) return "";
    const doing = this.run.installing ? `installing ${this.run.installing}` : known(STAGES, this.run.stage) || "working";
    return `${doing} · ${clock(Math.max(0, now - this.run.began))}`;
  }

  /** When the first run began, or the interpreter. */
  get began(): number | null {
    return this.#items.began;
  }

  get isInterpreter(): boolean {
    return this.#notebook.isUsed;
  }

  /** The box of the latest run, or of the interpreter. */
  get box(): string {
    return this.run?.box || this.#notebook.box;
  }

  snapshot(): Chunk[] {
    return this.#items.snapshot();
  }

  items(): Iterable<Item> {
    return this.#items;
  }

  /** Takes an entry. One that was taken before, by its id, changes nothing. */
  take(entry: Entry): void {
    const payload = fields(entry?.payload);
    const kind = text(payload.type);
    const id = text(entry?.id);
    const name = kind.slice(kind.lastIndexOf(".") + 1);
    const family = kind.slice(0, Math.max(kind.lastIndexOf("."), 0));
    const ts = number(entry?.ts) ?? 0;
    const passing = name === "delta" || kind === "signal.run.heartbeat";
    if (id && !passing) {
      if (this.#seen.has(id)) return;
      this.#seen.add(id);
    }
    if (!passing) this.entries += 1;
    if (kind === "chat") this.#chat(payload, ts, id, text(entry.authorId));
    else if (family === "signal.run") this.#signal(name, payload, ts);
    else if (family === "signal.model") this.#model(name, payload, ts);
    else if (family === "signal.thread") this.#thread(name, payload, ts);
    else if (family === "signal.workflow") {
      this.#items.began ??= ts;
      this.workflow = foldWorkflow(this.workflow, name, payload, ts);
    } else if (kind.startsWith("signal.")) {
      if (family === "signal.session") this.#session(name);
      this.#remarkOn(kind, payload, ts);
    }
    else if (family === "interpreter") this.#notebook.take(name, payload, ts);
    else if (family) this.#agent(name, payload, ts);
  }

  // --- what people said ---

  #chat(payload: Fields, ts: number, id: string, author: string): void {
    const said = plain(payload.text).trim();
    const role = text(payload.role) || "user";
    if (role === "user" && !this.firstPrompt) this.firstPrompt = firstLine(said);
    const mode = text(fields(payload.prompt).mode);
    const channel = firstLine(fields(payload.prompt).channel);
    const waits = payload.queued === true || payload.interrupt === true || mode !== "";
    const tag = payload.interrupt === true || mode === "steer" ? "interrupts" : payload.queued === true || mode ? "queued" : role === "user" ? "" : firstLine(role);
    if (waits && id) this.waiting.set(id, firstLine(said));
    else this.#settle(); // a prompt that waits ends no message
    const key = this.#add({ kind: "prompt", text: said, tag, author: [channel, firstLine(author)].filter(Boolean).join(" · "), entry: id }, ts);
    if (waits && id) {
      this.#items.change<PromptItem>(key, { turn: 0 });
      this.#waitingKeys.set(id, key);
    }
  }

  // --- what Holdfast did ---

  #signal(name: string, payload: Fields, ts: number): void {
    const run = this.#runOf(payload, ts);
    if (name === "started") {
      run.agent = firstLine(payload.agent);
      run.model = firstLine(payload.model);
      run.resumes = text(payload.resumes);
      run.provider = firstLine(payload.provider);
      for (const prompt of Array.isArray(payload.prompts) ? payload.prompts : []) {
        this.waiting.delete(text(prompt));
        this.#takePrompt(text(prompt), { turn: run.number });
      }
    } else if (name === "box") {
      run.box = firstLine(payload.box);
      run.files = text(payload.files);
      run.provider = firstLine(payload.provider) || run.provider;
      run.isolation = firstLine(payload.isolation);
      run.boxTook = number(payload.ms);
      run.stage = "box";
      if (run.box) this.boxes.add(run.box);
    } else if (name === "environment") {
      run.environment = firstLine(payload.environment);
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
      this.#add({ kind: "remark", text: "■ asked to stop", serious: true }, ts);
    } else if (name === "model_trouble") {
      this.#add({ kind: "remark", text: `! ${sentence(payload.message)}`, serious: true }, ts);
    } else if (name === "finished") {
      this.#finish(run, payload, ts);
    }
  }

  // What the server counted is better known than what the agent says.
  #model(name: string, payload: Fields, ts: number): void {
    const run = this.runs.get(text(payload.run));
    if (name === "call") {
      const sum = ["input", "cache_read", "cache_write", "output"].map((each) => number(payload[each]) ?? 0).reduce((a, b) => a + b, 0);
      if (sum) {
        this.context = sum;
        this.contextModel = text(payload.model);
      }
    }
    if (!run) return;
    const cost = number(payload.cost);
    if (name === "call" && cost !== null) run.counted = (run.counted ?? 0) + cost;
    else if (name === "call") run.unpriced += 1;
    if (name === "failover") {
      const then = text(payload.to) ? `going on with ${firstLine(payload.to)}` : "no other model is left";
      const why = known(FAILOVERS, payload.reason) || "gave no answer";
      this.#add({ kind: "remark", text: `⇄ ${firstLine(payload.model)} ${why}: ${then}`, serious: true }, ts);
    }
    if (name === "budget") {
      const spent = number(payload.spent) ?? 0;
      const limit = number(payload.limit) ?? Infinity;
      const reached = payload.state === "reached" || spent >= limit;
      const remark = `! the budget of this ${firstLine(payload.scope)} is ${reached ? "used up" : "nearly used up"}`;
      if (Number.isFinite(limit)) this.budget = { scope: firstLine(payload.scope), spent, limit, unit: text(payload.unit), reached };
      if (remark !== run.budget) this.#add({ kind: "remark", text: remark, serious: true }, ts);
      run.budget = remark;
    }
  }

  #thread(name: string, payload: Fields, ts: number): void {
    const turn = number(payload.turn) ?? 0;
    if (name === "checkpoint" || name === "checkpoint_skipped") {
      if (name === "checkpoint") this.checkpoints.push({ number: turn, ts });
      this.#add({ kind: "checkpoint", number: turn, skipped: name === "checkpoint" ? "" : firstLine(payload.why) || "not saved" }, ts);
    } else if (name === "forked") {
      this.#mark("forked", ts, `⎇ forked from ${firstLine(payload.from)} after turn ${turn}`, ["conversation and files as they were then"]);
    } else if (name === "rewound") {
      this.#rewind(payload, turn, ts);
    } else if (name === "child_started") {
      const child = text(payload.child);
      this.#children.set(child, this.#add({
        kind: "child", thread: firstLine(child), title: firstLine(payload.title), agent: firstLine(payload.agent), status: "running",
      }, ts));
    } else if (name === "child_finished") {
      const key = this.#children.get(text(payload.child));
      const status = firstLine(payload.status) || "ended";
      if (key) this.#items.change<ChildItem>(key, { status });
      else this.#add({ kind: "child", thread: firstLine(payload.child), title: "", agent: "", status }, ts);
    } else {
      this.#remarkOn(`signal.thread.${name}`, payload, ts);
    }
  }

  #rewind(payload: Fields, turn: number, ts: number): void {
    if (payload.undoes === true) {
      this.rewound = this.#undo.pop() ?? new Set();
      this.#mark("rewound", ts, "↶ rewind undone", [`back at the end of turn ${turn}`]);
    } else {
      this.#undo.push(this.rewound);
      this.rewound = new Set([...this.rewound, ...[...this.runs.values()].map((run) => run.number).filter((each) => each > turn)]);
      const said = turn ? `↶ rewound to the end of turn ${turn}` : "↶ rewound to the beginning";
      this.#mark("rewound", ts, said, ["what came after it no longer counts"]);
    }
    this.canUndo = payload.undo !== null && payload.undo !== undefined;
    this.waiting.clear();
  }

  #session(name: string): void {
    this.isSession = true;
    if (name !== "terminated" && name !== "error") return;
    const tag = name === "terminated" ? "cancelled" : "failed";
    for (const id of this.waiting.keys()) this.#takePrompt(id, { tag });
    this.waiting.clear();
  }

  /** A prompt waits no longer: it is not labelled as queued any more. One that interrupted stays labelled so. */
  #takePrompt(id: string, change: Partial<PromptItem>): void {
    const key = this.#waitingKeys.get(id) ?? "";
    const item = this.#items.find(key);
    if (item?.kind === "prompt") this.#items.change<PromptItem>(key, { tag: item.tag === "queued" ? "" : item.tag, ...change });
  }

  #remarkOn(kind: string, payload: Fields, ts: number): void {
    const said = describeSignal(kind.replace(/^signal\./, ""), payload);
    if (said) this.#add({ kind: "remark", text: firstLine(said), serious: false }, ts);
  }

  #runOf(payload: Fields, ts: number): Run {
    const id = text(payload.run);
    let run = this.runs.get(id);
    if (!run) {
      run = newRun(id, this.runs.size + 1, ts);
      this.runs.set(id, run);
      this.run = run;
      this.#items.began ??= ts;
      this.canUndo = false;
      this.#claimPrompts(run.number);
    }
    return run;
  }

  // The prompts right before a run are its own: they belong to its turn.
  #claimPrompts(turn: number): void {
    for (const item of this.#items.fromEnd()) {
      if (item.kind !== "prompt" || this.waiting.has(item.entry)) break;
      this.#items.change<PromptItem>(item.key, { turn });
    }
  }

  #announce(run: Run, ts: number): void {
    if (run.announced) return;
    run.announced = true;
    const took = run.boxTook === null ? "" : duration(run.boxTook);
    if (this.#takesUp(run)) {
      const details = [known(SESSIONS, run.session), known(FILES, run.files), took].filter(Boolean);
      const where = run.box ? `↻ resumed in box ${run.box}` : "↻ resumed";
      const by = run.session === "handed-over" ? ` by ${run.agent}` : "";
      this.#mark("resumed", ts, where + by, details, "", "", run.id);
      return;
    }
    const who = [run.agent || "agent", run.version].filter(Boolean).join(" ");
    const box = run.box ? `in box ${run.box}, ${run.provider}${run.isolation ? ` (${run.isolation})` : ""}` : "";
    const rest = [run.model, box, took, known(SESSIONS, run.session), run.environment ? `environment ${run.environment}` : ""].filter(Boolean);
    this.#add({ kind: "who", agent: who, rest: rest.map((each) => ` · ${each}`).join("") }, ts);
  }

  #finish(run: Run, payload: Fields, ts: number): void {
    if (run.status) return;
    this.#settle();
    this.#announce(run, ts);
    const status = STATUSES.has(text(payload.status)) ? text(payload.status) : "failed";
    const failure = fields(payload.error);
    run.status = status;
    run.ended = ts;
    run.code = text(failure.code);
    run.cost = number(fields(payload.usage).cost) ?? run.cost;
    for (const { key } of this.#calls.values()) this.#items.change<ToolItem>(key, { status: "interrupted", summary: "interrupted" });
    this.#calls.clear();
    for (const key of this.#questions.values()) this.#items.change<QuestionItem>(key, { answer: "not answered" });
    this.#questions.clear();
    const error = sentence(failure.message);
    const hint = firstLine(failure.hint);
    const tally = [count(this.boxes.size, "box", "boxes"), count(this.entries, "entry", "entries")];
    if (this.cost) tally.push(this.cost === "unknown" ? "cost unknown" : this.cost);
    if (status === "orphaned") {
      const how = run.box ? known(BOX_LOST, run.code) : "";
      const lost = how ? `✗ box ${run.box} ${how}` : `✗ the run in box ${run.box} was lost`;
      const what = run.box ? lost : "✗ the run was lost before it had a box";
      const why = how ? "" : [error, hint].filter(Boolean).join(" · ");
      this.#mark("lost", ts, what, [`${count(this.entries, "entry", "entries")} are safe on the thread`], why, run.code, run.id);
      return;
    }
    const took = duration(ts - this.#chainBegan(run));
    const joined = status === "completed" ? "in" : "after";
    const said = status === "cancelled" && run.interrupted ? "interrupted" : status;
    const below = [error, hint].filter(Boolean).join(" · ");
    this.#mark(status, ts, `${known(ENDINGS, status)} ${said} ${joined} ${took}`, tally, below, run.code, run.id);
  }

  // Whether it continues unfinished work, and does not merely follow another run.
  #takesUp(run: Run): boolean {
    return run.resumes !== "" && this.runs.get(run.resumes)?.status !== "completed";
  }

  #chainBegan(run: Run): number {
    const seen = new Set<string>();
    let first = run;
    for (let before = this.runs.get(first.resumes); this.#takesUp(first) && before && !seen.has(first.id); before = this.runs.get(first.resumes)) {
      seen.add(first.id);
      first = before;
    }
    return first.began;
  }

  // --- what the agent did ---

  #agent(name: string, payload: Fields, ts: number): void {
    const run = this.run;
    if (run && !run.status) {
      if (["assistant", "call", "tool", "delta"].includes(name)) run.stage = "";
      this.#announce(run, ts);
    }
    if (name === "event") this.#subAgents.take(fields(payload.record));
    else if (name === "delta") this.#delta(payload, ts);
    else if (name === "assistant") this.#assistant(payload, ts);
    else if (name === "call") this.#call(payload, ts);
    else if (name === "tool") this.#tool(payload, ts);
    else if (name === "question") this.#ask(payload, ts);
    else if (name === "answer") this.#answer(payload);
    else if (name === "retry") {
      const attempt = number(payload.attempt);
      this.#add({ kind: "remark", text: `⟳ retrying${attempt === null ? "" : ` (${attempt})`}: ${sentence(payload.message)}`, serious: true }, ts);
    } else if (name === "compaction") {
      this.#add({ kind: "thinking", lead: "≡ context summarised: ", text: plain(payload.summary).trim() }, ts);
    } else if (name === "notice") {
      const serious = payload.level === "warning" || payload.level === "error";
      this.#add({ kind: "remark", text: `${serious ? "!" : "i"} ${sentence(payload.text)}`, serious }, ts);
    }
  }

  #ask(payload: Fields, ts: number): void {
    const question = text(payload.question);
    const options = (Array.isArray(payload.options) ? payload.options : []).slice(0, MOST_OPTIONS).map((each) => firstLine(each)).filter(Boolean);
    const key = this.#add({ kind: "question", question, text: plain(payload.text).trim(), options, permission: payload.kind === "permission", answer: null }, ts);
    this.#questions.set(question, key);
  }

  #answer(payload: Fields): void {
    const question = text(payload.question);
    const said = typeof payload.answer === "string" ? payload.answer : JSON.stringify(payload.answer ?? "");
    this.#items.change<QuestionItem>(this.#questions.get(question) ?? "", { answer: said === EXPIRED ? "nobody answered in time" : firstLine(said) });
    this.#questions.delete(question);
  }

  #delta(payload: Fields, ts: number): void {
    const live = (this.#live ??= { text: "", thinking: "", prose: "", folded: "" });
    if (text(payload.thinking)) {
      live.thinking = (live.thinking + text(payload.thinking)).slice(-MOST_LIVE);
      if (live.folded) this.#items.change<FoldedItem>(live.folded, { text: plain(live.thinking).trim() });
      else live.folded = this.#add({ kind: "thinking", lead: "∴ ", text: plain(live.thinking).trim() }, ts);
    }
    if (text(payload.text)) {
      live.text = (live.text + text(payload.text)).slice(-MOST_LIVE);
      if (live.prose) this.#items.change<ProseItem>(live.prose, { text: live.text });
      else live.prose = this.#add({ kind: "prose", text: live.text, live: true, partial: false }, ts);
    }
  }

  // Replaces its live text in place, so that nothing jumps.
  #assistant(payload: Fields, ts: number): void {
    const live = this.#live;
    this.#live = null;
    const cost = number(fields(payload.usage).cost);
    if (this.run && cost !== null) this.run.cost = (this.run.cost ?? 0) + cost;
    const thinking = plain(payload.thinking).trim();
    if (thinking && live?.folded) this.#items.change<FoldedItem>(live.folded, { text: thinking });
    else if (thinking) this.#add({ kind: "thinking", lead: "∴ ", text: thinking }, ts, live?.prose);
    else if (live?.folded) this.#items.remove(live.folded);
    const said = text(payload.text).trim();
    const partial = payload.partial === true;
    if (said && live?.prose) this.#items.change<ProseItem>(live.prose, { text: said, live: false, partial });
    else if (said) this.#add({ kind: "prose", text: said, live: false, partial }, ts);
    else if (live?.prose) this.#items.remove(live.prose);
  }

  // Ends live text that no complete message followed.
  #settle(): void {
    if (this.#live?.prose) this.#items.change<ProseItem>(this.#live.prose, { live: false });
    this.#live = null;
  }

  #call(payload: Fields, ts: number): void {
    const call = describeCall(payload.name, payload.arguments);
    const key = this.#add({ kind: "tool", call, given: payload.arguments, status: "running", summary: "…", output: null, truncated: false, took: null, steps: [] }, ts);
    if (this.#calls.size >= MOST_CALLS) this.#calls.clear();
    this.#calls.set(JSON.stringify(payload.call ?? null), { key, ts });
    this.#subAgents.begin(payload.call, call, key);
  }

  #tool(payload: Fields, ts: number): void {
    const id = JSON.stringify(payload.call ?? null);
    const begun = this.#calls.get(id);
    this.#calls.delete(id);
    const call = describeCall(payload.name, payload.arguments);
    const status: ToolStatus = payload.status === "error" || payload.status === "interrupted" ? payload.status : "ok";
    const output = text(payload.result);
    const ended = {
      status, output, truncated: payload.truncated === true,
      summary: summarize(call.icon, output, status),
      took: number(payload.ms) ?? (begun ? ts - begun.ts : null),
    };
    if (begun) this.#items.change<ToolItem>(begun.key, payload.arguments === undefined ? ended : { ...ended, call, given: payload.arguments });
    else this.#subAgents.begin(payload.call, call, this.#add({ kind: "tool", call, given: payload.arguments, steps: [], ...ended }, ts));
    if (call.todos) this.todos = call.todos;
    if (status === "ok") for (const path of call.paths) this.touched.set(path, (this.touched.get(path) ?? 0) + 1);
  }

  // --- items ---

  #add(made: Made<Item>, ts: number, before = ""): string {
    const turn = this.run && !(made.kind === "prompt" && this.run.status) ? this.run.number : this.runs.size + (made.kind === "prompt" ? 1 : 0);
    return this.#items.add(made, ts, turn, before);
  }

  #mark(style: string, ts: number, said: string, details: string[], below = "", code = "", run = ""): void {
    // A resumption goes right below the run that it continues, and above the prompts for it.
    let before = "";
    if (style === "resumed") {
      for (const item of this.#items.fromEnd()) {
        if (item.kind !== "prompt") break;
        before = item.key;
      }
    }
    this.#add({ kind: "mark", style, text: said, details, below, code, run }, ts, before);
  }
}
