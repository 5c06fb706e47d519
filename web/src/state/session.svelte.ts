// Who uses this tab: what the server says about its key or its login. Without either, a link shows its thread, read-only.

import { Refused, call, get } from "../api/client.ts";
import { getKey, linkOf, mayBeLoggedIn, setKey, useCookie } from "../api/credentials.ts";
import type { Caller } from "../api/types.ts";

class Session {
  caller = $state.raw<Caller | null>(null);
  /** Why the key of the tab was not accepted. */
  refusal = $state("");
  known = $state(false);

  /** Whether it may read what its tenant has. */
  get canSee(): boolean {
    return this.caller !== null;
  }

  /** Whether it may work: viewers read. */
  get canAct(): boolean {
    return this.caller !== null && this.caller.role !== "viewer";
  }

  get isOwner(): boolean {
    return this.caller !== null && (this.caller.role ?? "owner") === "owner";
  }

  /** Asks who this tab is. `thread` is the one of the address, whose link may be the only credential. */
  async open(thread: string | null): Promise<void> {
    const hasKey = getKey() !== null;
    if (!hasKey && thread !== null && linkOf(thread) !== null && !mayBeLoggedIn()) {
      this.known = true; // a link is for one thread
      return;
    }
    try {
      this.caller = await get<Caller>("/v1/caller");
      this.refusal = "";
      if (!hasKey) useCookie(true);
    } catch (error) {
      this.caller = null;
      if (!hasKey) useCookie(false);
      if (error instanceof Refused && hasKey) this.refusal = "This key is not valid on this server.";
      else if (!(error instanceof Refused)) this.refusal = "The server does not answer.";
    }
    this.known = true;
  }

  async enter(key: string): Promise<boolean> {
    setKey(key.trim() || null);
    await this.open(null);
    if (!this.canSee) setKey(null);
    return this.canSee;
  }

  /** The server no longer accepts the key or the login of this tab: it was revoked, or is that of another server. */
  lose(): void {
    setKey(null);
    useCookie(false);
    this.caller = null;
    this.refusal = "The server no longer accepts the key or the login of this tab.";
  }

  /** Forgets the key of this tab, or logs this browser out. */
  async leave(): Promise<void> {
    if (getKey() === null) await call("DELETE", "/v1/login").catch(() => undefined);
    setKey(null);
    useCookie(false);
    this.caller = null;
    this.refusal = "";
  }
}

export const session = new Session();
