import assert from "node:assert/strict";
import { test } from "node:test";
import { describeComments, parsePatch } from "./patch.ts";

const PATCH = `diff --git a/price.py b/price.py
index 1..2 100644
--- a/price.py
+++ b/price.py
@@ -1,3 +1,2 @@ def price():
 a
-b
-c
+d
diff --git a/new.txt b/new.txt
new file mode 100644
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hello
`;

test("a patch becomes files with numbered lines", () => {
  const files = parsePatch(PATCH);
  assert.deepEqual(files.map((file) => [file.path, file.added, file.removed]), [["price.py", 1, 2], ["new.txt", 1, 0]]);
  assert.deepEqual(files[0]?.hunks[0]?.lines.map((line) => [line.sign, line.old, line.fresh]), [[" ", 1, 1], ["-", 2, null], ["-", 3, null], ["+", null, 2]]);
});

test("lines of a file that look like a head of a patch stay lines", () => {
  const files = parsePatch("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n x\n+++ b/etc/passwd\n");
  assert.deepEqual(files.map((file) => file.path), ["x"]);
  assert.equal(files[0]?.added, 1);
});

test("comments tell the agent the file, the line and its text", () => {
  const said = describeComments([{ path: "price.py", line: 2, side: "new", code: "d", text: "Why d?" }]);
  assert.equal(said, "A comment on your changes:\n\nprice.py:2\n> d\nWhy d?");
});
