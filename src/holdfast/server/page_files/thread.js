// The page of one thread: reads it, shows it, follows it. Read-only.

import { Reader, Refused } from "./reading.js";
import { Timeline } from "./timeline.js";
import { clock, count, firstLine } from "./words.js";

const SHAPES = { running: "●", completed: "✓", failed: "✗", cancelled: "■", orphaned: "✗", idle: "○", reading: "○" };
const NEAR = 90;

const thread = decodeURIComponent(location.pathname.split("/").at(-1));
const at = (id) => document.getElementById(id);
const timeline = new Timeline(at("timeline"), thread);
let title = "";
let following = true;
let drawing = false;
let link = "";

const atBottom = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - NEAR;

function jump() {
  following = true;
  window.scrollTo({ top: document.documentElement.scrollHeight });
  at("jump").hidden = true;
}

function show(entries) {
  for (const entry of entries) {
    try {
      timeline.take(entry);
    } catch (error) {
      console.error("an entry could not be shown", error);
    }
  }
}

function take(entries) {
  show(entries);
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

function put(id, value) {
  const node = at(id);
  if (node.textContent !== value) node.textContent = value;
}

function draw() {
  drawing = false;
  const { run, status } = timeline;
  const shown = title || timeline.firstPrompt || thread;
  put("title", shown);
  at("title").title = shown;
  put("thread", thread);
  put("agent", run ? [run.agent, run.version].filter(Boolean).join(" ") || "–" : "–");
  put("model", run?.model || "–");
  put("boxes", String(timeline.boxes.size));
  put("entries", timeline.entries.toLocaleString("en"));
  put("cost", timeline.cost ?? "–");
  tick();
  tell();
  const node = at("status");
  node.className = `status ${status}`;
  node.children[0].textContent = SHAPES[status];
  node.children[1].textContent = status === "orphaned" ? "box lost" : status;
  document.title = `${SHAPES[status]} ${shown} · Holdfast`;
  if (timeline.left) {
    at("earlier").hidden = false;
    put("earlier", `${count(timeline.left, "earlier line is", "earlier lines are")} not shown: holdfast thread entries ${thread}`);
  }
  if (following) window.scrollTo({ top: document.documentElement.scrollHeight });
  else at("jump").hidden = atBottom();
}

function connected(state) {
  link = state;
  tell();
}

// Shows the state of the connection. A run that has ended is not live.
function tell() {
  const over = timeline.run && timeline.status !== "running";
  if (link === "live") put("link", over ? "ended; new entries appear here" : "live");
  else if (link === "away") put("link", "the server does not answer; retrying");
}

function tick() {
  const { run } = timeline;
  const now = Date.now();
  put("elapsed", run ? clock((run.ended ?? Math.max(now, run.began)) - timeline.began) : "–");
  const doing = timeline.doing(now);
  at("now").hidden = !doing;
  put("doing", doing);
}

function trouble(error) {
  const [head, said, remedy] = explain(error);
  const node = at("trouble");
  node.children[0].textContent = head;
  node.children[1].textContent = said;
  node.children[2].textContent = remedy;
  node.hidden = false;
  link = "";
  put("link", "not connected");
  at("now").hidden = at("status").hidden = true;
  put("title", thread);
}

function explain(error) {
  if (!(error instanceof Refused)) return ["This page cannot read the thread", String(error?.message ?? error), `holdfast attach ${thread}`];
  if (error.status === 404 || error.status === 410) {
    return [`There is no thread ${thread}`, "It was deleted, or it is on another server.", "holdfast thread list"];
  }
  if ((error.status === 401 || error.status === 403) && !reader.token) {
    return ["This address has no key", "Open the link that this command prints. It is valid for a day:",
      `holdfast attach ${thread}`];
  }
  if (error.status === 401 || error.status === 403) {
    return ["This link does not open this thread", "A link is valid for a day and for one thread. This command prints a new one:",
      `holdfast attach ${thread}`];
  }
  return ["The server refused the request", firstLine(error.message), `holdfast thread show ${thread}`];
}

window.addEventListener("scroll", () => {
  following = atBottom();
  at("jump").hidden = following || !timeline.entries;
}, { passive: true });
at("jump").addEventListener("click", jump);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const toggled = { o: "details.tool", t: ".thinking > .body > details" }[event.key];
  if (event.key === "f" || event.key === "End") jump();
  else if (toggled) {
    const all = [...document.querySelectorAll(toggled)];
    const open = !all.some((node) => node.open);
    for (const node of all) node.open = open;
  }
});
setInterval(tick, 1000);

const reader = new Reader(thread);
try {
  title = firstLine((await reader.about()).title ?? "");
  // Detached while the history is loaded: otherwise the browser lays out the whole page at each change.
  timeline.root.remove();
  await reader.history((entries) => {
    show(entries);
    put("link", `loading: ${timeline.entries.toLocaleString("en")} entries`);
  }, connected);
  at("now").before(timeline.root);
  draw();
  if (!timeline.entries) put("doing", "This thread is empty. New entries appear here.");
  await reader.follow(take, connected);
  link = "closed";
  put("link", "the thread is closed");
} catch (error) {
  trouble(error);
}
