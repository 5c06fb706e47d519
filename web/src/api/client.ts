// Requests to the REST API of this server. A refusal is an error with the server's message, and what to do about it.

import { credentialFor } from "./credentials.ts";

export class Refused extends Error {
  readonly status: number;
  readonly code: string;
  readonly hint: string;

  constructor(status: number, code: string, message: string, hint: string) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

export interface Request {
  method?: string;
  /** JSON, unless it is bytes or text. */
  body?: unknown;
  /** The thread that the request is about: its link may be the only credential. */
  thread?: string | null;
  accept?: string;
  signal?: AbortSignal;
}

export async function send(path: string, request: Request = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: request.accept ?? "application/json" };
  const credential = credentialFor(request.thread ?? null);
  if (credential) headers.authorization = `Bearer ${credential}`;
  let body: BodyInit | undefined;
  if (request.body instanceof Uint8Array || typeof request.body === "string") {
    body = request.body as BodyInit;
    headers["content-type"] = "application/octet-stream";
  } else if (request.body !== undefined) {
    body = JSON.stringify(request.body);
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, {
    method: request.method ?? (body === undefined ? "GET" : "POST"), headers, body: body ?? null, credentials: "same-origin", cache: "no-store",
    referrerPolicy: "no-referrer", signal: request.signal ?? null,
  });
  if (answer.ok) return answer;
  throw await refusal(answer);
}

/** With a capital, unless it begins with a name. */
export const asSentence = (said: string): string => (/^[a-z]+[ ,]/.test(said) ? `${said[0]?.toUpperCase()}${said.slice(1)}` : said);

async function refusal(answer: Response): Promise<Refused> {
  let error: { code?: unknown; message?: unknown; hint?: unknown } = {};
  try {
    error = ((await answer.json()) as { error?: typeof error }).error ?? {};
  } catch { /* the body is not ours, so only the status is known */ }
  return new Refused(answer.status, String(error.code ?? ""), asSentence(String(error.message ?? `the server answered with status ${answer.status}`)), asSentence(String(error.hint ?? "")));
}

export async function get<T>(path: string, request: Request = {}): Promise<T> {
  return (await (await send(path, request)).json()) as T;
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await send(path, body === undefined ? { method } : { method, body });
  const said = await answer.text();
  return (said ? JSON.parse(said) : null) as T;
}

export const at = (...parts: string[]): string => `/v1/${parts.map(encodeURIComponent).join("/")}`;

export function query(path: string, values: Record<string, string | number | boolean | null | undefined>): string {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined && value !== "") told.set(name, String(value));
  const shown = told.toString();
  return shown ? `${path}?${shown}` : path;
}
