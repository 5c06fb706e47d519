// A terminal of a process in a box. Output is read from an offset on, so a broken connection loses and repeats nothing; what is
// typed goes in order, one request at a time. xterm.js draws it.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { Refused, at, call, query, send } from "../api/client.ts";
import { lastBytes } from "../model/bytes.ts";

export interface OpenTerminal { close: () => void; focus: () => void }

const PAUSE = 500;
const LONGEST = 5000;
const MOST_OLD = 1 << 20;

// xterm.js writes style elements, which the policy of the page refuses. The same text as a sheet of the document is allowed.
const sheets = new WeakMap<HTMLStyleElement, CSSStyleSheet>();
Object.defineProperty(HTMLStyleElement.prototype, "textContent", {
  configurable: true,
  set(this: HTMLStyleElement, text: string) {
    let sheet = sheets.get(this);
    if (!sheet) {
      sheets.set(this, (sheet = new CSSStyleSheet()));
      document.adoptedStyleSheets.push(sheet);
    }
    sheet.replaceSync(text);
  },
});
HTMLStyleElement.prototype.remove = function remove(this: HTMLStyleElement): void {
  const sheet = sheets.get(this);
  document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
  Element.prototype.remove.call(this);
};

// For some cells it writes style attributes, which the policy refuses as well. The same by way of the object is allowed.
HTMLSpanElement.prototype.setAttribute = function setAttribute(this: HTMLSpanElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};

const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function openTerminal(host: HTMLElement, box: string, process: string, ended: (code: number | null) => void, state: (said: string) => void): OpenTerminal {
  const terminal = new Terminal({
    fontFamily: colour("--mono"), fontSize: 13, cursorBlink: true, scrollback: 5000, convertEol: false, allowProposedApi: false,
    linkHandler: { activate: () => undefined }, // what a program prints leads nowhere
    screenReaderMode: true,
    theme: { background: colour("--paper"), foreground: colour("--ink"), cursor: colour("--accent"), selectionBackground: colour("--accent-soft") },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(host);
  const stop = new AbortController();
  const typed: Uint8Array[] = [];
  let isWriting = false;
  let offset = 0;

  async function write(): Promise<void> {
    if (isWriting) return;
    isWriting = true;
    while (typed.length && !stop.signal.aborted) {
      const parts = typed.splice(0);
      const all = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0));
      parts.reduce((position, each) => { all.set(each, position); return position + each.length; }, 0);
      try {
        await send(at("boxes", box, "processes", process, "stdin"), { method: "POST", body: all, signal: stop.signal });
      } catch (error) {
        if (!stop.signal.aborted) state(error instanceof Refused ? error.message : "not sent: the server does not answer");
      }
    }
    isWriting = false;
  }

  // Programs ask terminals questions, which the terminal answers by typing. Questions in old output were answered long ago, or
  // were put there to make whoever looks type something: nothing is typed until all of it is shown.
  let isOld = true;
  const type = (data: Uint8Array): void => {
    if (isOld) return;
    typed.push(data);
    void write();
  };
  const encoder = new TextEncoder();
  terminal.onData((data) => type(encoder.encode(data)));
  terminal.onBinary((data) => type(Uint8Array.from(data, (each) => each.charCodeAt(0))));

  async function showOld(): Promise<void> {
    let shown = new Uint8Array();
    for (;;) {
      const answer = await send(query(at("boxes", box, "processes", process, "output"), { offset, limit: MOST_OLD }), { accept: "*/*", signal: stop.signal });
      const piece = new Uint8Array(await answer.arrayBuffer());
      if (!piece.length) break;
      offset += piece.length;
      shown = lastBytes(shown, piece, MOST_OLD); // what was printed since the last request comes in a piece of its own
    }
    await new Promise<void>((go) => terminal.write(shown, go));
    isOld = false;
  }
  let sized = "";
  const resize = (): void => {
    fit.fit();
    const size = `${terminal.rows} ${terminal.cols}`;
    if (size === sized) return;
    sized = size;
    void call("POST", at("boxes", box, "processes", process, "resize"), { rows: terminal.rows, columns: terminal.cols }).catch(() => undefined);
  };
  const sizes = new ResizeObserver(resize);
  sizes.observe(host);

  async function follow(): Promise<void> {
    for (let failures = 0; !stop.signal.aborted;) {
      try {
        if (isOld) await showOld();
        const answer = await send(query(at("boxes", box, "processes", process, "output"), { follow: true, offset }), { accept: "*/*", signal: stop.signal });
        state("");
        const chunks = answer.body?.getReader();
        for (;;) {
          const { value, done } = (await chunks?.read()) ?? { value: undefined, done: true };
          if (done) break;
          failures = 0;
          offset += value.length;
          // Waits for the terminal, so that a program that prints without end does not fill the memory of the page.
          await new Promise<void>((go) => terminal.write(value, go));
        }
        const code = await exitCode();
        if (code !== undefined) {
          ended(code);
          return;
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Refused && error.status < 500 && error.status !== 429) {
          state(error.message);
          ended(null);
          return;
        }
        failures += 1;
        state("the server does not answer; retrying");
        await new Promise((go) => setTimeout(go, Math.min(LONGEST, PAUSE * failures)));
      }
    }
  }

  async function exitCode(): Promise<number | null | undefined> {
    const answer = await send(at("boxes", box, "processes", process), { signal: stop.signal });
    const info = (await answer.json()) as { state: string; exitCode: number | null };
    return info.state === "running" ? undefined : info.exitCode;
  }

  void follow();
  return {
    close: () => {
      stop.abort();
      sizes.disconnect();
      terminal.dispose();
    },
    focus: () => terminal.focus(),
  };
}
