// The address: which page is shown. Every list has a URL, and every state a link.

import { takeFragment } from "../api/credentials.ts";

export type View = "timeline" | "changes" | "files" | "terminal" | "ports" | "box";
export type Route =
  | { page: "threads" }
  | { page: "new" }
  | { page: "thread"; thread: string; view: View }
  | { page: "inbox" }
  | { page: "boxes" }
  | { page: "compare"; a: string; b: string }
  | { page: "settings"; part: string }
  | { page: "nowhere"; path: string };

const VIEWS = new Set<string>(["changes", "files", "terminal", "ports", "box"]);

export function routeOf(path: string): Route {
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  const [first, second, third] = parts;
  if (!first) return { page: "threads" };
  if (first === "t" && second && parts.length === 2) return { page: "thread", thread: second, view: "timeline" };
  if (first === "t" && second && third && VIEWS.has(third)) return { page: "thread", thread: second, view: third as View };
  if (first === "new") return { page: "new" };
  if (first === "inbox") return { page: "inbox" };
  if (first === "boxes") return { page: "boxes" };
  if (first === "compare" && second && third) return { page: "compare", a: second, b: third };
  if (first === "settings") return { page: "settings", part: second ?? "models" };
  return { page: "nowhere", path };
}

class Router {
  route = $state.raw<Route>(routeOf(location.pathname));
  search = $state.raw(new URLSearchParams(location.search));

  constructor() {
    takeFragment(this.route.page === "thread" ? this.route.thread : null);
    addEventListener("popstate", () => this.#read());
    addEventListener("hashchange", () => {
      takeFragment(this.route.page === "thread" ? this.route.thread : null);
    });
    document.addEventListener("click", (event) => this.#click(event));
  }

  go(path: string, { replace = false } = {}): void {
    if (path !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", path);
    this.#read();
  }

  #read(): void {
    this.route = routeOf(location.pathname);
    this.search = new URLSearchParams(location.search);
  }

  // Links of the page itself change it in place.
  #click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.origin !== location.origin || link.hasAttribute("download") || /^\/(?:v1|login)(?:\/|$)/.test(link.pathname)) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const router = new Router();
export const threadPath = (thread: string, view: View = "timeline"): string =>
  `/t/${encodeURIComponent(thread)}${view === "timeline" ? "" : `/${view}`}`;
