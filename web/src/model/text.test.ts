import assert from "node:assert/strict";
import { test } from "node:test";
import { terminalPieces } from "./ansi.ts";
import { parseMarkdown } from "./markdown.ts";
import { age, bytes, describeCost, duration, firstLine, plain, sentence } from "./text.ts";
import { describeCall, summarize } from "./tools.ts";

test("control sequences and turning characters are taken out", () => {
  assert.equal(plain("\u001b]0;owned\u0007\u001b[31mred\u001b[0m \u202egnp.exe"), "red \ufffdgnp.exe");
  assert.equal(plain("10%\r50%\r100%\nnext"), "100%\nnext");
});

test("errors are sentences", () => {
  assert.equal(sentence('401 {"error":{"message":"invalid x-api-key"}}'), "401: invalid x-api-key");
  assert.equal(sentence("plain words\nmore"), "plain words …");
});

test("amounts are written as people read them", () => {
  assert.equal(duration(81), "81 ms");
  assert.equal(duration(4300), "4.3 s");
  assert.equal(age(3_700_000), "1 h");
  assert.equal(bytes(1_234_567), "1.2 MB");
  assert.equal(describeCost({ cost: 0, unpriced: 2 }), "unknown");
  assert.equal(describeCost({ cost: 1.5, unpriced: 2 }), "at least $1.50");
});

test("terminal output keeps its colours and nothing else", () => {
  assert.deepEqual(terminalPieces("\u001b[1;31mFAILED\u001b[0m ok"), [{ text: "FAILED", classes: "a1 c1" }, { text: " ok", classes: "" }]);
});

test("markdown becomes blocks of text, and links lead nowhere", () => {
  const blocks = parseMarkdown("# Found\n\nSee [docs](https://example.com) and `x`.\n\n- a\n  - b\n- c\n\n3. third\n\n| f | l |\n|---|---|\n| p | 1 |\n\n```py\nprint()\n```");
  assert.deepEqual(blocks.map((block) => block.kind), ["heading", "paragraph", "list", "list", "table", "code"]);
  const paragraph = blocks[1];
  assert.ok(paragraph?.kind === "paragraph");
  assert.equal(paragraph.content.map((each) => each.text).join(""), "See docs (https://example.com) and x.");
  const list = blocks[2];
  assert.ok(list?.kind === "list");
  assert.equal(list.items[0]?.lists[0]?.items.length, 1);
  const ordered = blocks[3];
  assert.ok(ordered?.kind === "list" && ordered.ordered);
  assert.equal(ordered.start, 3);
});

test("hostile markdown takes no time", () => {
  const began = performance.now();
  for (const piece of ["*", "[", "`", "|", "> ", "- ", "#", "(", "**a"]) parseMarkdown(piece.repeat(50_000));
  assert.ok(performance.now() - began < 5000);
});

test("a call is described by the shape of its arguments", () => {
  assert.equal(describeCall("bash", { command: ["bash", "-lc", "make test"] }).what, "make test");
  const edit = describeCall("edit", { path: "/workspace/price.py", edits: [{ oldText: "a\n b\n c\n", newText: "a\n d\n" }] });
  assert.deepEqual(edit.diff, [[" ", "a"], ["-", " b"], ["-", " c"], ["+", " d"]]);
  assert.equal(edit.what, "price.py");
  assert.equal(describeCall("grep", { pattern: "x" }).what, "grep x");
  assert.equal(firstLine(describeCall("constructor", { __proto__: null }).what), "constructor");
});

test("a failed command is summed up by its first error and exit code", () => {
  const output = "> build\nsrc/a.c:3: error: expected ';'\nmake: Error 2\n\nCommand exited with code 2";
  assert.equal(summarize("$", output, "error"), "src/a.c:3: error: expected ';' · exit 2");
  assert.equal(summarize("$", "1 test\nno error found\nOK", "ok"), "OK");
});
