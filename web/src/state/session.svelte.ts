// Who uses this tab: what the server says about its credential. Without a key of the server, a link shows its thread, read-only.

import { Refused, get } from "../api/client.ts";
import { credentialFor, getKey, isServerKey, setKey } from "../api/credentials.ts";
import type { Caller } from "../api/types.ts";

class Session {
  caller = $state.raw<Caller | null>(null);
  /** Why the key of the tab was not accepted. */
  refusal = $state("");
  known = $state(false);

  get canAct(): boolean {
    return this.caller !== null;
  }

  /** Asks who this tab is. `thread` is the one of the address, whose link may be the only credential. */
  async open(thread: string | null): Promise<void> {
    const credential = credentialFor(thread);
    if (credential !== null && !isServerKey(credential)) {
      this.caller = null; // a link or a token is for one thread
      this.known = true;
      return;
    }
    try {
      this.caller = await get<Caller>("/v1/caller", { thread });
      this.refusal = "";
    } catch (error) {
      this.caller = null;
      if (error instanceof Refused && getKey() !== null) this.refusal = "This key is not valid on this server.";
      else if (!(error instanceof Refused)) this.refusal = "The server does not answer.";
    }
    this.known = true;
  }

  async enter(key: string): Promise<boolean> {
    setKey(key.trim() || null);
    await this.open(null);
    if (!this.canAct) setKey(null);
    return this.canAct;
  }

  leave(): void {
    setKey(null);
    this.caller = null;
    this.refusal = "";
  }
}

export const session = new Session();
