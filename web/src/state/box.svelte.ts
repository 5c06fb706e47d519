// The box of a thread: its record, what it uses, and what it tried to reach. Read while somebody looks; looking does not wake it.

import { Refused, at, call, get, query } from "../api/client.ts";
import type { BoxMetrics, BoxRecord, EgressDecision, NetworkPolicy, ProcessInfo } from "../api/types.ts";
import { session } from "./session.svelte.ts";

const EVERY = 4000;
const SOON = 700;
const KEPT = 60;

export const ASLEEP = new Set(["hibernated", "paused", "stopped"]);
export const ENDED = new Set(["deleted", "gone", "deleting"]);

export interface Sample { at: number; cpu: number; memory: number; disk: number; sent: number; received: number }

export class BoxView {
  readonly id: string;
  record = $state.raw<BoxRecord | null>(null);
  metrics = $state.raw<BoxMetrics | null>(null);
  samples = $state.raw<Sample[]>([]);
  denied = $state.raw<EgressDecision[]>([]);
  decisions = $state.raw<EgressDecision[]>([]);
  processes = $state.raw<ProcessInfo[]>([]);
  trouble = $state("");
  readonly #stop = new AbortController();
  #before: { at: number; cpu: number; sent: number; received: number } | null = null;

  constructor(id: string) {
    this.id = id;
  }

  open(): void {
    void this.#loop();
  }

  close(): void {
    this.#stop.abort();
  }

  async #loop(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      if (!document.hidden) await this.refresh();
      // Two samples make a line: the second comes soon.
      await new Promise((go) => setTimeout(go, this.samples.length === 1 ? SOON : EVERY));
    }
  }

  async refresh(): Promise<void> {
    const signal = this.#stop.signal;
    try {
      this.record = await get<BoxRecord>(at("boxes", this.id), { signal });
      this.trouble = "";
      const page = await get<{ decisions: EgressDecision[] }>(query(at("boxes", this.id, "egress"), { limit: 100 }), { signal });
      this.decisions = page.decisions;
      const known = new Set(this.record.spec.network.allow);
      const hosts = new Set<string>();
      this.denied = page.decisions.filter((each) => !each.allowed && each.host && !hosts.has(ruleOf(each)) && !known.has(ruleOf(each)) && hosts.add(ruleOf(each)));
      if (this.record.state === "running") {
        this.#sample(await get<BoxMetrics>(at("boxes", this.id, "metrics"), { signal }));
        if (session.canAct) this.processes = (await get<{ processes: ProcessInfo[] }>(at("boxes", this.id, "processes"), { signal })).processes;
      }
    } catch (error) {
      if (!signal.aborted) this.trouble = error instanceof Refused ? error.message : "The server does not answer.";
      if (error instanceof Refused && error.status === 404) this.close();
    }
  }

  #sample(metrics: BoxMetrics): void {
    this.metrics = metrics;
    const now = Date.now();
    const told = { at: now, cpu: metrics.cpuSeconds ?? 0, sent: metrics.sent ?? 0, received: metrics.received ?? 0 };
    const before = this.#before;
    this.#before = told;
    const seconds = Math.max(0.1, (now - (before ?? told).at) / 1000);
    const rate = (fresh: number, old: number): number => Math.max(0, fresh - old) / seconds;
    this.samples = [...this.samples, {
      at: now, cpu: rate(told.cpu, (before ?? told).cpu), memory: metrics.memory ?? 0, disk: metrics.disk ?? 0,
      sent: rate(told.sent, (before ?? told).sent), received: rate(told.received, (before ?? told).received),
    }].slice(-KEPT);
  }

  isAllowed(decision: EgressDecision): boolean {
    const network = this.record?.spec.network;
    return network?.mode === "open" || (network?.mode === "allow" && network.allow.includes(ruleOf(decision)));
  }

  /** Lets the box reach what it was refused, and nothing more. */
  async allow(decision: EgressDecision): Promise<void> {
    if (!this.record) return;
    const network = this.record.spec.network;
    const listed = network.mode === "allow" ? (network.allow.length ? network.allow : ["default"]) : [];
    const policy: NetworkPolicy = { ...network, mode: "allow", allow: [...new Set([...listed, ruleOf(decision)])] };
    this.record = await call<BoxRecord>("PUT", at("boxes", this.id, "network"), policy);
    await this.refresh();
  }
}

export const ruleOf = (decision: EgressDecision): string => {
  const host = decision.host.includes(":") ? `[${decision.host}]` : decision.host;
  return decision.port === 80 || decision.port === 443 ? host : `${host}:${decision.port}`;
};

/** What a box may reach, in words. */
export function describeNetwork(network: NetworkPolicy): string {
  if (network.mode === "none") return "no network but the model";
  if (network.mode === "open") return "the whole network";
  return network.allow.length ? `may reach ${network.allow.slice(0, 4).join(", ")}${network.allow.length > 4 ? ` and ${network.allow.length - 4} more` : ""}` : "may reach package registries and git hosts";
}
