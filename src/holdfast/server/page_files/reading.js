// Reads a thread: its history by pages, then what comes, as an event stream over fetch (which can carry a credential).
// Everything that is known of the credential stays in this file.

const PAGE = 1000;
const LONGEST_PAUSE = 5000;
const RENEW_BEFORE = 30 * 60 * 1000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Reader {
  constructor(thread) {
    this.thread = thread;
    this.token = takeToken(thread);
    this.offset = "-1";
  }

  async about() {
    return (await this.#ask(`/v1/threads/${encodeURIComponent(this.thread)}`)).json();
  }

  // Calls `take` with the entries that are there, page by page.
  async history(take, tell) {
    for (let failures = 0; ;) {
      try {
        const answer = await this.#ask(`/v1/threads/${encodeURIComponent(this.thread)}/entries?unfinished=true&limit=${PAGE}&since=${encodeURIComponent(this.offset)}`);
        const page = await answer.json();
        failures = 0;
        this.offset = page.nextOffset;
        take(page.entries);
        if (page.upToDate) return;
      } catch (error) {
        failures += 1;
        await recover(error, failures, tell);
      }
    }
  }

  // Calls `take` with new entries, until the thread is closed or the credential is refused. Calls `tell` with the state of
  // the connection: "live", or "away" while there is none.
  async follow(take, tell) {
    let failures = 0;
    for (;;) {
      try {
        await this.#renew();
        const answer = await this.#ask(
          `/v1/stream/threads/${encodeURIComponent(this.thread)}?live=sse&offset=${encodeURIComponent(this.offset)}`, "text/event-stream");
        tell("live");
        const closed = await this.#receive(answer.body.getReader(), take, () => { failures = 0; });
        if (closed) return;
      } catch (error) {
        failures += 1;
        await recover(error, failures, tell);
      }
    }
  }

  async #receive(chunks, take, good) {
    const decoder = new TextDecoder();
    let rest = "";
    let entries = [];
    for (;;) {
      const { value, done } = await chunks.read();
      if (done) return false;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const { kind, data } = parseEvent(event);
        if (kind === "data") {
          entries.push(...JSON.parse(data));
        } else if (kind === "control") {
          // The offset after these entries is known only now, so they are taken only now. A broken connection repeats none.
          const control = JSON.parse(data);
          this.offset = control.streamNextOffset;
          good();
          if (entries.length) take(entries);
          entries = [];
          if (control.streamClosed) return true;
        }
      }
    }
  }

  async #ask(path, accept = "application/json", method = "GET") {
    const headers = { accept };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const answer = await fetch(path, { method, headers, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" });
    if (answer.ok) return answer;
    let message = `the server answered with status ${answer.status}`;
    try {
      message = (await answer.json()).error.message;
    } catch { /* the body is not ours, so only the status is known */ }
    throw new Refused(answer.status, String(message));
  }

  async #renew() {
    const expires = this.token ? expiryOf(this.token) : null;
    if (expires === null || expires - Date.now() > RENEW_BEFORE) return;
    try {
      this.token = (await (await this.#ask("/v1/tokens/renew", "application/json", "POST")).json()).token;
      keepToken(this.thread, this.token);
    } catch { /* the old token still works until it expires; then reading fails */ }
  }
}

// Waits before the next attempt, longer each time. Throws if the server refused the request.
async function recover(error, failures, tell) {
  if (error instanceof Refused && error.status < 500 && error.status !== 429) throw error;
  tell("away");
  const pause = Math.min(LONGEST_PAUSE, 250 * 2 ** Math.min(failures, 6));
  await new Promise((go) => setTimeout(go, pause * (0.5 + Math.random() / 2)));
}

function parseEvent(text) {
  let kind = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return { kind, data: data.join("\n") };
}

// Moves the key from the fragment to the storage of this tab, so that the address can be shown and shared without it.
function takeToken(thread) {
  const told = new URLSearchParams(location.hash.slice(1));
  const key = told.get("key");
  const given = key ? `hfl_${thread}.${key}` : told.get("token");
  if (given) {
    keepToken(thread, given);
    history.replaceState(null, "", location.pathname);
    return given;
  }
  try {
    return sessionStorage.getItem(`token:${thread}`) ?? sessionStorage.getItem("key");
  } catch {
    return null;
  }
}

function keepToken(thread, token) {
  try {
    sessionStorage.setItem(`token:${thread}`, token);
  } catch { /* then this tab forgets it on a reload */ }
}

function expiryOf(token) {
  try {
    const claims = JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
    return typeof claims.exp === "number" ? claims.exp * 1000 : null;
  } catch {
    return null;
  }
}
