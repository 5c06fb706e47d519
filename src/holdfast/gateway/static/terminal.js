// A small terminal: enough for a shell and for programs that move the cursor. It has no colours.
// It speaks ttyd's "tty" subprotocol, counts the output that it has got, and continues there after a lost connection.
"use strict";

const SCROLLBACK = 2000;
const screen = document.getElementById("screen");
const state = document.getElementById("state");
const decoder = () => new TextDecoder("utf-8");
const name = new URLSearchParams(location.search).get("name") || "main";

class Grid {
  constructor() { this.reset(); }

  reset() {
    this.lines = [""]; this.row = 0; this.column = 0; this.saved = [0, 0];
    this.text = decoder(); this.pending = ""; this.other = null;
  }

  // The first line of the window, in which programs count rows.
  top(rows) { return Math.max(0, this.lines.length - rows); }

  write(bytes, rows) {
    let text = this.pending + this.text.decode(bytes, { stream: true });
    this.pending = "";
    for (let at = 0; at < text.length; at++) {
      const char = text[at];
      if (char === "\x1b") {
        const used = this.escape(text.slice(at, at + 4096), rows);
        if (used === 0) { this.pending = text.slice(at); break; }
        at += used - 1;
      } else if (char === "\n") { this.line(); }
      else if (char === "\r") { this.column = 0; }
      else if (char === "\b") { this.column = Math.max(0, this.column - 1); }
      else if (char === "\t") { this.column += 8 - this.column % 8; }
      else if (char >= " ") { this.put(char); }
    }
  }

  line() {
    this.row++;
    while (this.row >= this.lines.length) this.lines.push("");
    if (this.lines.length > SCROLLBACK) {
      const old = this.lines.length - SCROLLBACK;
      this.lines.splice(0, old); this.row -= old;
    }
  }

  put(char) {
    const line = (this.lines[this.row] || "").padEnd(this.column);
    this.lines[this.row] = line.slice(0, this.column) + char + line.slice(this.column + 1);
    this.column++;
  }

  // Returns how many characters a sequence has, or 0 if it is not complete.
  escape(text, rows) {
    if (text.length < 2) return 0;
    if (text[1] === "]") {  // a title, for example
      const end = text.search(/\x07|\x1b\\/);
      return end < 0 ? (text.length >= 4096 ? text.length : 0) : end + (text[end] === "\x07" ? 1 : 2);
    }
    if (text[1] !== "[") return "()#%".includes(text[1]) ? (text.length < 3 ? 0 : 3) : 2;
    const match = /^\x1b\[([?>=!]?)([0-9;:]*)[ -/]*([@-~])/.exec(text);
    if (!match) return text.length > 64 ? 2 : 0;
    const numbers = match[2].split(";").map((each) => parseInt(each, 10) || 0);
    this.command(match[1], match[3], numbers, rows);
    return match[0].length;
  }

  command(mark, kind, numbers, rows) {
    const count = Math.min(numbers[0] || 1, 1000), top = this.top(rows);
    const line = () => this.lines[this.row] || "";
    if (mark === "?" && [1049, 47, 1047].includes(numbers[0])) {  // the second screen of full-screen programs
      if (kind === "h" && !this.other) {
        this.other = [this.lines, this.row, this.column];
        this.lines = Array(rows).fill(""); this.row = this.column = 0;
      } else if (kind === "l" && this.other) { [this.lines, this.row, this.column] = this.other; this.other = null; }
      return;
    }
    if (mark) return;
    if (kind === "A") this.row = Math.max(top, this.row - count);
    else if (kind === "B") { for (let i = 0; i < count && this.row < top + rows - 1; i++) this.line(); }
    else if (kind === "C") this.column += count;
    else if (kind === "D") this.column = Math.max(0, this.column - count);
    else if (kind === "G") this.column = count - 1;
    else if (kind === "d" || kind === "H" || kind === "f") {
      this.row = top + Math.min(count, rows) - 1;
      while (this.row >= this.lines.length) this.lines.push("");
      if (kind !== "d") this.column = Math.min((numbers[1] || 1) - 1, 1000);
    } else if (kind === "K") {
      const whole = line();
      if (numbers[0] === 0) this.lines[this.row] = whole.slice(0, this.column);
      else if (numbers[0] === 1) this.lines[this.row] = " ".repeat(this.column + 1) + whole.slice(this.column + 1);
      else this.lines[this.row] = "";
    } else if (kind === "J") {
      if (numbers[0] === 0) { this.lines[this.row] = line().slice(0, this.column); this.lines.length = this.row + 1; }
      else { for (let at = top; at < this.lines.length; at++) this.lines[at] = ""; }
    } else if (kind === "P") this.lines[this.row] = line().slice(0, this.column) + line().slice(this.column + count);
    else if (kind === "@") this.lines[this.row] = line().slice(0, this.column) + " ".repeat(count) + line().slice(this.column);
    else if (kind === "s") this.saved = [this.row - top, this.column];
    else if (kind === "u") { this.row = top + this.saved[0]; this.column = this.saved[1]; }
  }
}

const grid = new Grid();
let socket = null, offset = null, delay = 500, drawn = false;

function size() {
  const probe = document.createElement("span");
  probe.textContent = "0".repeat(10);
  screen.appendChild(probe);
  const box = probe.getBoundingClientRect();
  probe.remove();
  const width = box.width / 10 || 8, height = box.height || 18;
  return {
    columns: Math.max(20, Math.min(500, Math.floor((screen.clientWidth - 16) / width))),
    rows: Math.max(5, Math.min(200, Math.floor((screen.clientHeight - 16) / height))),
  };
}

function draw() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    const follows = screen.scrollTop + screen.clientHeight >= screen.scrollHeight - 40;
    const line = (grid.lines[grid.row] || "").padEnd(grid.column + 1);
    const cursor = document.createElement("span");
    cursor.className = "cursor";
    cursor.textContent = line[grid.column] || " ";
    const before = [...grid.lines.slice(0, grid.row), line.slice(0, grid.column)].join("\n");
    const rest = [line.slice(grid.column + 1), ...grid.lines.slice(grid.row + 1)].join("\n");
    screen.replaceChildren(before, cursor, rest);
    if (follows) screen.scrollTop = screen.scrollHeight;
  });
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/tty/ws?name=${encodeURIComponent(name)}`, ["tty"]);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    const hello = { AuthToken: "", ...size() };
    if (offset !== null) hello.offset = offset;
    socket.send(new TextEncoder().encode(JSON.stringify(hello)));
    state.textContent = "connected";
    delay = 500;
  };
  socket.onmessage = (event) => {
    const data = new Uint8Array(event.data), rest = data.subarray(1);
    const kind = String.fromCharCode(data[0]);
    if (kind === "0") { offset += rest.length; grid.write(rest, size().rows); draw(); }
    else if (kind === "1") document.title = decoder().decode(rest);
    else if (kind === "2") {
      const told = JSON.parse(decoder().decode(rest));
      if (told.offset !== offset) { grid.reset(); offset = told.offset; }
    }
  };
  socket.onclose = (event) => {
    if (event.code === 1000) { state.textContent = `${event.reason}. Press Enter for a new shell.`; offset = null; return; }
    if (event.code === 1008) { state.textContent = event.reason; return; }
    state.textContent = "the connection is lost; trying again…";
    setTimeout(connect, delay);
    delay = Math.min(delay * 2, 10000);
  };
}

function send(kind, text) {
  if (socket.readyState === WebSocket.OPEN) socket.send(new TextEncoder().encode(kind + text));
}

const KEYS = {
  Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C",
  ArrowLeft: "\x1b[D", Home: "\x1b[H", End: "\x1b[F", Delete: "\x1b[3~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
};

screen.addEventListener("keydown", (event) => {
  if (event.metaKey || (event.ctrlKey && event.shiftKey)) return;  // copying, for example
  if (socket.readyState === WebSocket.CLOSED && event.key === "Enter") { grid.reset(); connect(); return; }
  let text = KEYS[event.key];
  if (event.ctrlKey && /^[a-z@[\\\]^_]$/i.test(event.key)) text = String.fromCharCode(event.key.toUpperCase().charCodeAt(0) & 31);
  else if (!text && event.key.length === 1 && !event.ctrlKey) text = (event.altKey ? "\x1b" : "") + event.key;
  if (!text) return;
  event.preventDefault();
  send("0", text);
});
screen.addEventListener("paste", (event) => send("0", event.clipboardData.getData("text").replace(/\n/g, "\r")));
addEventListener("resize", () => send("1", JSON.stringify(size())));
// While this page is open, its login is in use.
setInterval(() => fetch("/tty/token").catch(() => {}), 300000);

screen.focus();
connect();
