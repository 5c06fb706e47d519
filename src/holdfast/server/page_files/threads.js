// The list of threads, those with the newest activity first. Read-only; with an API key where the server asks for one, which
// stays in this tab.

import { clock, element, firstLine, plain } from "./words.js";

const MOST = 200;
const SHAPES = { running: "●", completed: "✓", failed: "✗", cancelled: "■", orphaned: "✗", idle: "○" };

const at = (id) => document.getElementById(id);
const field = at("key").querySelector("input");
let key = sessionStorage.getItem("key");

async function read() {
  const headers = key ? { accept: "application/json", authorization: `Bearer ${key}` } : { accept: "application/json" };
  const answer = await fetch(`/v1/threads?limit=${MOST}`, { headers, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" });
  if (answer.status === 401 || answer.status === 403) {
    at("said").textContent = key
      ? "This key does not allow listing threads."
      : "Enter an API key to list the threads. “holdfast key create NAME” creates one. The key stays in this tab.";
    at("key").hidden = false;
    return;
  }
  if (!answer.ok) throw new Error(`the server answered with status ${answer.status}`);
  const { threads, nextCursor } = await answer.json();
  if (key) sessionStorage.setItem("key", key);
  at("key").hidden = true;
  at("said").textContent = threads.length
    ? nextCursor ? `The ${MOST} most recently active threads. “holdfast thread list” lists all.` : ""
    : "There are no threads yet. “holdfast demo” creates one, and shows what Holdfast does.";
  at("threads").replaceChildren(...threads.map(row));
}

function row(thread) {
  const link = element("a", "", firstLine(thread.title ?? thread.lastEntry?.text ?? "") || thread.id);
  link.href = `/t/${encodeURIComponent(thread.id)}`;
  link.title = thread.id;
  const status = Object.hasOwn(SHAPES, thread.status) ? thread.status : "idle";
  const age = clock(Date.now() - thread.lastActivityAt);
  return element("li", "", link, element("span", `state quiet ${status}`, `${SHAPES[status]} ${plain(thread.status)}`),
    element("span", "age quiet number", `${age} ago`));
}

async function show() {
  try {
    await read();
  } catch (error) {
    at("said").textContent = `Cannot read the threads: ${error.message}`;
  }
}

function open() {
  key = field.value.trim() || null;
  show();
}

at("key").querySelector("button").addEventListener("click", open);
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") open();
});
show();
