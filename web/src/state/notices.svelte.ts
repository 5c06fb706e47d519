// Short notices in a corner of the page, and notifications of the system where the user has allowed them.

import { threadPath } from "./router.svelte.ts";

export interface Notice { id: number; text: string; bad: boolean; hint: string }

class Notices {
  all = $state.raw<Notice[]>([]);
  #ids = 0;

  say(text: string, { bad = false, hint = "" } = {}): void {
    const notice = { id: (this.#ids += 1), text, bad, hint };
    this.all = [...this.all.slice(-3), notice];
    setTimeout(() => this.drop(notice.id), bad ? 12_000 : 4000);
  }

  /** Says what went wrong, with the remedy of the server. */
  fail(error: unknown): void {
    const hint = (error as { hint?: unknown })?.hint;
    this.say(error instanceof Error ? error.message : String(error), { bad: true, hint: typeof hint === "string" ? hint : "" });
  }

  drop(id: number): void {
    this.all = this.all.filter((each) => each.id !== id);
  }
}

export const notices = new Notices();

/** Tells the user, outside of the page, that something has ended. The title of a thread is text there, too. */
export function notify(text: string, thread: string): void {
  if (typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const shown = new Notification("Holdfast", { body: text.slice(0, 200), tag: thread, icon: "/page/mark.svg" });
  shown.onclick = () => {
    window.focus();
    history.pushState(null, "", threadPath(thread));
    dispatchEvent(new PopStateEvent("popstate"));
  };
}

export async function allowNotifications(): Promise<boolean> {
  return typeof Notification !== "undefined" && (await Notification.requestPermission()) === "granted";
}
