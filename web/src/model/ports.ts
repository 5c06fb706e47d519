// The ports that programs in a box listen on, from the kernel's table of connections. Pure: the box wrote it, so nothing of it
// is believed but numbers in their range.

const LISTENING = "0A";

export function listeningPorts(table: string): number[] {
  const ports = new Set<number>();
  for (const line of table.slice(0, 1_000_000).split("\n").slice(1)) {
    const [, local = "", , state] = line.trim().split(/\s+/);
    const port = Number.parseInt(local.split(":")[1] ?? "", 16);
    if (state === LISTENING && port > 0 && port < 65536) ports.add(port);
  }
  return [...ports].slice(0, 200);
}
