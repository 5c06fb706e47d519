import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { listeningPorts } from "./ports.ts";
import { tarParts } from "./tar.ts";

test("tar unpacks what was packed, with long and foreign names", () => {
  const folder = mkdtempSync(join(tmpdir(), "tar-"));
  try {
    const long = `a/${"deep/".repeat(40)}ünïcode ☂.txt`;
    const files = [{ path: "price.py", content: new TextEncoder().encode("print(1)\n") }, { path: long, content: new Uint8Array(700).fill(65) }, { path: "empty", content: new Uint8Array() }];
    writeFileSync(join(folder, "x.tar"), Buffer.concat(tarParts(files)));
    execFileSync("tar", ["xf", "x.tar"], { cwd: folder });
    assert.equal(readFileSync(join(folder, "price.py"), "utf8"), "print(1)\n");
    assert.equal(readFileSync(join(folder, long), "utf8"), "A".repeat(700));
    assert.equal(readFileSync(join(folder, "empty"), "utf8"), "");
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("listening ports are those in the state of listening", () => {
  const table = "  sl  local_address rem_address   st\n   0: 0100007F:0BB8 00000000:0000 0A 0\n   1: 0100007F:1F90 0100007F:9999 01 0\n   2: junk\n";
  assert.deepEqual(listeningPorts(table), [3000]);
});
