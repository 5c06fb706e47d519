// The credentials of this tab: a key for the whole server, and keys of links, each for one thread. They come in the fragment,
// which browsers do not send, are taken out of the address at once, and are kept for this tab only. Nothing else knows them.
// A browser that is logged in has a cookie instead, which no script can read.

const KEY = "key";
const LOGGED_IN = "logged-in";

function stored(name: string): string | null {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null; // then this tab forgets it on a reload
  }
}

function store(name: string, value: string | null): void {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch { /* as above */ }
}

let key = stored(KEY);
const links = new Map<string, string>();

/** Moves what the fragment has to this tab, so that the address can be shown and shared. `thread` is that of the address. */
export function takeFragment(thread: string | null): void {
  const told = new URLSearchParams(location.hash.slice(1));
  const short = told.get("key");
  const given = short && thread ? `hfl_${thread}.${short}` : (told.get("token") ?? short);
  if (!given) return;
  if (!isServerKey(given)) {
    if (thread) keepLink(thread, given);
  } else if (key === null) {
    setKey(given); // a link does not replace the key that somebody has entered
  }
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function keepLink(thread: string, token: string): void {
  links.set(thread, token);
  store(`token:${thread}`, token);
}

export function linkOf(thread: string): string | null {
  return links.get(thread) ?? stored(`token:${thread}`);
}

export const getKey = (): string | null => key;

export function setKey(value: string | null): void {
  key = value;
  store(KEY, value);
}

let byCookie = false;

/** Whether this browser was logged in lately. Only then it is worth asking the server, where there is a link as well. */
export function mayBeLoggedIn(): boolean {
  try {
    return localStorage.getItem(LOGGED_IN) === "yes";
  } catch {
    return false;
  }
}

/** From now on, requests without a key of the server go with the cookie, or with the link of their thread. */
export function useCookie(wanted: boolean): void {
  byCookie = wanted;
  try {
    if (wanted) localStorage.setItem(LOGGED_IN, "yes");
    else localStorage.removeItem(LOGGED_IN);
  } catch { /* then a link comes first in the next tab */ }
}

/** The credential for a request: the key of the server where there is one, then the cookie, then the link of the thread. */
export function credentialFor(thread: string | null): string | null {
  return key ?? (thread && !byCookie ? linkOf(thread) : null);
}

/** Whether it may be a key of the server. Keys of links and tokens, which are for one thread, look different. */
export const isServerKey = (credential: string): boolean => credential.startsWith("hf_");

export function expiryOf(token: string): number | null {
  try {
    const claims: unknown = JSON.parse(atob((token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/")));
    const expires = (claims as { exp?: unknown }).exp;
    return typeof expires === "number" ? expires * 1000 : null;
  } catch {
    return null;
  }
}
