// A tar archive of files that the browser has, for the workspace of a run. Pure.

export interface PackedFile { path: string; content: Uint8Array; executable?: boolean }

const BLOCK = 512;

/** Returns the parts of the archive, in order. Names longer than a header takes come as extended headers (pax). */
export function tarParts(files: readonly PackedFile[]): Uint8Array[] {
  const parts: Uint8Array[] = [];
  for (const file of files) {
    const name = new TextEncoder().encode(file.path);
    // eslint-disable-next-line no-control-regex
    if (name.length > 99 || /[^\x20-\x7e]/.test(file.path)) {
      const record = paxRecord("path", file.path);
      parts.push(header("pax", record.length, "x", 0o644), record, padding(record.length));
    }
    parts.push(header(file.path, file.content.length, "0", file.executable ? 0o755 : 0o644), file.content, padding(file.content.length));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return parts;
}

function paxRecord(name: string, value: string): Uint8Array {
  const encoder = new TextEncoder();
  const rest = encoder.encode(` ${name}=${value}\n`).length;
  let length = rest + 1;
  while (String(length).length + rest !== length) length = String(length).length + rest;
  return encoder.encode(`${length} ${name}=${value}\n`);
}

function header(path: string, size: number, type: string, mode: number): Uint8Array {
  const block = new Uint8Array(BLOCK);
  const put = (text: string, at: number, most: number): void => {
    block.set(new TextEncoder().encode(text).subarray(0, most), at);
  };
  put(path, 0, 99);
  put(mode.toString(8).padStart(7, "0"), 100, 7);
  put("0000000", 108, 7);
  put("0000000", 116, 7);
  put(size.toString(8).padStart(11, "0"), 124, 11);
  put("00000000000", 136, 11);
  put("        ", 148, 8);
  put(type, 156, 1);
  put("ustar\u000000", 257, 8);
  const sum = block.reduce((total, each) => total + each, 0);
  put(`${sum.toString(8).padStart(6, "0")}\u0000 `, 148, 8);
  return block;
}

const padding = (size: number): Uint8Array => new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
