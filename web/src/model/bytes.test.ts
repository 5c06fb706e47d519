import assert from "node:assert/strict";
import { test } from "node:test";
import { lastBytes } from "./bytes.ts";

const CASES: [string[], number, string][] = [
  [["red 42\n", "$ "], 100, "red 42\n$ "],
  [["abc", "de"], 5, "abcde"],
  [["abc", "de"], 4, "bcde"],
  [["abc", "defghi"], 4, "fghi"],
  [["abc", ""], 2, "bc"],
  [[], 4, ""],
];

test("of pieces the last bytes are left, whatever the pieces are", () => {
  for (const [pieces, most, left] of CASES) {
    let all = new Uint8Array();
    for (const piece of pieces) all = lastBytes(all, new TextEncoder().encode(piece), most);
    assert.equal(new TextDecoder().decode(all), left);
  }
});
