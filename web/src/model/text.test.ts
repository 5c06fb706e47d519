import assert from "node:assert/strict";
import { test } from "node:test";
import { terminalPieces } from "./ansi.ts";
import { type Block, type Inline, parseMarkdown } from "./markdown.ts";
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
  const colour = (codes: string): string | undefined => terminalPieces(`\u001b[${codes}mx`)[0]?.classes;
  assert.deepEqual(["38;5;1", "38;5;208", "38;2;120;80;220", "38;5;244", "1;38;5;2", "48;5;31", "48;2;1;2;3", "38;2;250;250;250"].map(colour), ["c1", "c3", "c4", "c7", "a1 c2", "", "", ""]);
});

/** A tree of Markdown in short: what each part is, and its text. */
function outline(markdown: string): unknown[] {
  const line = (content: readonly Inline[]): string => content.map((each) => ("content" in each ? `<${each.kind}>${line(each.content)}</${each.kind}>` : each.kind === "code" ? `<code>${each.text}</code>` : each.text)).join("");
  const blocks = (all: readonly Block[]): unknown[] => all.map((block) => {
    switch (block.kind) {
      case "paragraph": return line(block.content);
      case "heading": return `h${block.level} ${line(block.content)}`;
      case "quote": return { quote: blocks(block.blocks) };
      case "rule": return "---";
      case "code": return { code: block.text, language: block.language };
      case "list": return { [block.ordered ? `from ${block.start}` : "list"]: block.items.map((item) => (item.checked === null ? blocks(item.blocks) : [item.checked, ...blocks(item.blocks)])) };
      case "table": return { table: [block.head.map(line), ...block.rows.map((row) => row.map(line))], alignments: block.alignments };
    }
  });
  return blocks(parseMarkdown(markdown));
}

test("markdown becomes blocks of text, and links lead nowhere", () => {
  assert.deepEqual(outline("# Found\n\nSee [docs](https://example.com) and `x`.\n\n- a\n  - b\n- c\n\n3. third\n\n| f | l |\n|---|--:|\n| p | 1 |\n\n```py\nprint()\n```"), [
    "h1 Found", "See docs (https://example.com) and <code>x</code>.", { list: [["a", { list: [["b"]] }], ["c"]] }, { "from 3": [["third"]] },
    { table: [["f", "l"], ["p", "1"]], alignments: ["", "right"] }, { code: "print()", language: "py" },
  ]);
  assert.deepEqual(outline("![a picture](x.png) <https://example.com> [x](x)"), ["a picture (x.png) https://example.com x"]);
});

test("what stands in a line can stand in each other, and names with lines under them are whole", () => {
  assert.deepEqual(outline("**`p`** ~~gone~~ ***both*** __now__ _care_ **a *b* c**"), [
    "<strong><code>p</code></strong> <del>gone</del> <em><strong>both</strong></em> <strong>now</strong> <em>care</em> <strong>a <em>b</em> c</strong>",
  ]);
  assert.deepEqual(outline("snake_case_name 2 * 3 * 4 \\*no\\* ``a ` b`` `open"), ["snake_case_name 2 * 3 * 4 *no* <code>a ` b</code> `open"]);
});

test("a list item has blocks of its own", () => {
  assert.deepEqual(outline("1. First\n   - nested\n\n   More of it.\n2. Second\n\n   ```sh\n   make\n   ```\n\n- [x] done\n- [ ] open"), [
    { "from 1": [["First", { list: [["nested"]] }, "More of it."], ["Second", { code: "make", language: "sh" }]] }, { list: [[true, "done"], [false, "open"]] },
  ]);
  assert.deepEqual(outline("1. First\n  - two spaces are enough\n2. Second"), [{ "from 1": [["First", { list: [["two spaces are enough"]] }], ["Second"]] }]);
  assert.deepEqual(outline("> said\n>\n> - in a quote\n\nTitle\n===\n\n    indented"), [{ quote: ["said", { list: [["in a quote"]] }] }, "h1 Title", { code: "indented", language: "" }]);
});

test("hostile markdown takes no time", () => {
  const began = process.cpuUsage();
  for (const piece of ["*", "[", "![", "`", "`` ` ", "|", "> ", "- ", "- a\n", "1. a\n\n", "|a|\n|-|\n", "#", "(", "**a", "_a_ ", "***a**", "\\"]) parseMarkdown(piece.repeat(50_000));
  const used = process.cpuUsage(began);
  assert.ok(used.user + used.system < 20_000_000, "seconds of the processor, where a quadratic reader needs minutes");
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
