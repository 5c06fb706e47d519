// The page of a terminal: xterm.js, connected to a shell in the box by ttyd's "tty" subprotocol.
// It counts the output that it has got, and continues there after a lost connection.
import { FitAddon } from "/tty/xterm/addon-fit.mjs";
import { Terminal } from "/tty/xterm/xterm.mjs";

const state = document.getElementById("state");
const name = new URLSearchParams(location.search).get("name") || "main";
const terminal = new Terminal({
  cursorBlink: true,
  fontFamily: "ui-monospace, monospace",
  fontSize: 14,
  scrollback: 5000,
  theme: { background: "#111111", foreground: "#dddddd", cursor: "#55cccc" },
});
const fit = new FitAddon();
const encoder = new TextEncoder(), decoder = new TextDecoder();
const MOST_EARLY = 4096;
// `replayed` is where the old output ends. While that is shown, nothing is sent: the terminal would answer questions of
// programs that have long ended, and the shell would take the answers for input. What is typed before the connection is
// there waits in `early`.
let socket = null, offset = null, shown = 0, replayed = 0, delay = 500, replaying = false, ready = false, early = "";

function size() {
  return { columns: Math.min(terminal.cols, 1000), rows: Math.min(terminal.rows, 1000) };
}

function send(kind, text) {
  if (socket.readyState === WebSocket.OPEN) socket.send(encoder.encode(kind + text));
}

function receive(data) {
  const kind = String.fromCharCode(data[0]), rest = data.subarray(1);
  if (kind === "0") {
    offset += rest.length;
    const end = offset;
    terminal.write(rest, () => { shown = end; begin(); });
  } else if (kind === "1") document.title = decoder.decode(rest);
  else if (kind === "2") {
    const told = JSON.parse(decoder.decode(rest));
    if (told.offset !== offset) terminal.reset();
    offset = shown = told.offset;
    replayed = told.end || 0;
    replaying = !ready;
    begin();
  }
}

// From here on, what is typed goes to the shell.
function begin() {
  if (ready || !replaying || shown < replayed) return;
  ready = true;
  replaying = false;
  state.textContent = "connected";
  if (early) send("0", early);
  early = "";
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/tty/ws?name=${encodeURIComponent(name)}`, ["tty"]);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    const hello = { AuthToken: "", ...size() };
    if (offset !== null) hello.offset = offset;
    socket.send(encoder.encode(JSON.stringify(hello)));
    delay = 500;
  };
  socket.onmessage = (event) => receive(new Uint8Array(event.data));
  socket.onclose = (event) => {
    ready = replaying = false;
    if (event.code === 1000) { state.textContent = `${event.reason}. Press Enter for a new shell.`; offset = null; return; }
    if (event.code === 1008) { state.textContent = event.reason; return; }
    state.textContent = "the connection is lost; trying again…";
    setTimeout(connect, delay);
    delay = Math.min(delay * 2, 10000);
  };
}

terminal.loadAddon(fit);
terminal.open(document.getElementById("screen"));
fit.fit();
terminal.onData((text) => {
  if (socket.readyState === WebSocket.CLOSED && offset === null && text === "\r") { terminal.reset(); early = ""; connect(); return; }
  if (ready) send("0", text);
  else if (!replaying && early.length < MOST_EARLY) early += text;
});
terminal.onBinary((text) => {
  if (!ready || socket.readyState !== WebSocket.OPEN) return;
  socket.send(Uint8Array.from("0" + text, (char) => char.charCodeAt(0)));
});
terminal.onResize(() => send("1", JSON.stringify(size())));
new ResizeObserver(() => fit.fit()).observe(document.getElementById("screen"));
// While this page is open, its login is in use.
setInterval(() => fetch("/tty/token").catch(() => {}), 300000);

terminal.focus();
connect();
