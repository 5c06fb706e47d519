// Bytes that come in pieces, of which only the last ones are wanted.

export function lastBytes(before: Uint8Array<ArrayBuffer>, piece: Uint8Array, most: number): Uint8Array<ArrayBuffer> {
  const dropped = Math.max(0, before.length + piece.length - most);
  const kept = before.subarray(Math.min(dropped, before.length));
  const rest = piece.subarray(Math.max(0, piece.length - most));
  const both = new Uint8Array(kept.length + rest.length);
  both.set(kept);
  both.set(rest, kept.length);
  return both;
}
