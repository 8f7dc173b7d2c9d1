// Asks the query API. The token stays in sessionStorage: never in an address, never in a log.

const KEY = "fleetbus.token";
/** The token where storage is switched off. */
let unstored = "";

/** Why a request has no answer: the problem details of the API (RFC 9457). */
export class Problem extends Error {
  constructor(status, detail, members = {}) {
    super(detail);
    this.status = status;
    this.members = members;
    this.retryAfter = 0;
  }

  /** Whether the same request may soon be answered: a view asks again by itself. */
  get isPassing() {
    return PASSING.has(this.status) || (this.status === UNAVAILABLE && this.retryAfter > 0);
  }
}

const UNAVAILABLE = 503;
/** No answer at all, or one of a proxy without a query API behind it. */
const PASSING = new Set([0, 502, 504]);

/** The token of this tab; empty without one. */
export function readToken() {
  try {
    return sessionStorage.getItem(KEY) ?? unstored;
  } catch {
    return unstored;
  }
}

/** Keeps a token until the tab is closed; forgets it if it is empty. */
export function keepToken(token) {
  unstored = "";
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    unstored = token;
  }
}

/** The path of a resource: its parts may hold what has a meaning in addresses, like `#` and `?`. */
export function apiPath(what, resource, ...rest) {
  const parts = [...String(resource).split("/"), ...rest];
  return `/fleet/v1/${what}/${parts.map(encodeURIComponent).join("/")}`;
}

/** The path of one object in a cluster. */
export function objectPath(what, cluster, { resource, namespace, name }) {
  return apiPath(`${what}/${encodeURIComponent(cluster)}`, resource, namespace || "-", name);
}

function url(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value === "" || value === null || value === undefined || value === false) continue;
    query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Seconds: a view says that it waits, a request without a byte ends, a view asks again by itself. */
export const PATIENCE = { slow: 5, silent: 60, again: 5 };
const NOT_RESPONDING = "the query API is not responding";
/** The API sends a comment every 15 seconds while nothing changes. */
const SILENT_STREAM = 45;

/** A request whose waits end: by a time-out without a byte, or by the signal of the view. */
class Exchange {
  constructor(signal) {
    this.asked = signal;
    this.ending = new AbortController();
    this.signal = signal ? AbortSignal.any([signal, this.ending.signal]) : this.ending.signal;
  }

  /** Waits for a part of the answer; a network that fails is a problem. */
  async receive(part, patience = PATIENCE.silent) {
    const timer = setTimeout(() => this.ending.abort(new Problem(0, NOT_RESPONDING)), patience * 1000);
    try {
      return await part;
    } catch (error) {
      if (this.asked?.aborted) throw error;
      throw this.ending.signal.aborted ? this.ending.signal.reason : new Problem(0, NOT_RESPONDING);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends the request; answers the response if it is good. */
  async send(path, params, headers = {}) {
    const token = readToken();
    const sent = fetch(url(path, params), {
      headers: { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      signal: this.signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    const response = await this.receive(sent);
    if (response.ok) return response;
    throw readProblem(response, await this.receive(response.text()));
  }

  /** Yields the lines of an answer as they arrive, several at a time. */
  async *lines(response, patience) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let unfinished = "";
    try {
      for (;;) {
        const { value, done } = await this.receive(reader.read(), patience);
        if (done) break;
        const parts = (unfinished + value).split("\n");
        unfinished = parts.pop();
        if (parts.length) yield parts;
      }
      if (unfinished) yield [unfinished];
    } finally {
      reader.cancel().catch(() => undefined);
    }
  }
}

function readProblem(response, text) {
  let details = {};
  try {
    details = JSON.parse(text) ?? {};
  } catch {
    // a proxy may answer in any form
  }
  const problem = new Problem(response.status, details.detail ?? response.statusText, details);
  problem.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  if (response.status === 401) dispatchEvent(new CustomEvent("fleetbus:token", { detail: problem }));
  return problem;
}

const BUSY = 429;
const TRIES = 4;

/** Asks for JSON; waits and asks again where the API says that it is too much at a time. */
export async function get(path, params, options = {}) {
  for (let tried = 1; ; tried += 1) {
    try {
      const exchange = new Exchange(options.signal);
      const response = await exchange.send(path, params);
      return readJson(response, await exchange.receive(response.text()));
    } catch (error) {
      if (error.status !== BUSY || tried >= TRIES) throw error;
      await pause(Math.max(1, error.retryAfter), options.signal);
    }
  }
}

function readJson(response, text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(response.status, "the answer is not JSON: something between this page and the query API replaced it");
  }
}

/** Waits; ends early, with an error, when the signal says so. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", end, { once: true });
    if (signal?.aborted) end();
  });
}

/**
 * Reads a table that the server renders.
 * @returns {Promise<{end: object, rows: string[]}>} rows as JSON text, which is smaller than arrays.
 */
export async function readTable(path, params, { signal, onHead }) {
  const exchange = new Exchange(signal);
  const response = await exchange.send(path, { ...params, view: "table" });
  const rows = [];
  let head = null;
  for await (const batch of exchange.lines(response)) {
    for (const line of batch) {
      if (head === null) {
        head = readJson(response, line);
        onHead(head);
      } else if (line.startsWith("[")) rows.push(line);
      else if (line.startsWith("{")) {
        const last = readJson(response, line);
        if (last.error) throw new Problem(0, last.error);
        return { rows, end: last.end };
      }
    }
  }
  throw new Problem(0, "the table broke off before its end");
}

/**
 * Yields server-sent events. EventSource cannot send a token, so they are read from a fetch.
 * @returns {AsyncGenerator<{id: string, event: string, data: any}>}
 */
export async function* events(params, { signal, since }) {
  const exchange = new Exchange(signal);
  const response = await exchange.send("/fleet/v1/events", params, since ? { "Last-Event-ID": since } : {});
  let block = { id: "", event: "message", data: "" };
  for await (const batch of exchange.lines(response, SILENT_STREAM)) {
    for (const line of batch) {
      if (line === "") {
        if (block.data) yield { ...block, data: JSON.parse(block.data) };
        block = { id: "", event: "message", data: "" };
      } else if (line.startsWith("id: ")) block.id = line.slice(4);
      else if (line.startsWith("event: ")) block.event = line.slice(7);
      else if (line.startsWith("data: ")) block.data += line.slice(6);
    }
  }
}

let cached = null;

/** The types of resources that the user may know of; asked once per minute, for all views together. */
export async function types({ signal } = {}) {
  if (cached === null || Date.now() - cached.at > 60_000 || cached.token !== readToken()) {
    const asking = { at: Date.now(), token: readToken(), answer: get("/fleet/v1/resources", {}) };
    cached = asking;
    asking.answer.catch(() => cached === asking && (cached = null));
  }
  const asking = cached;
  const ended = new Promise((_, reject) => {
    const end = () => {
      if (cached === asking) cached = null; // whoever asks again must not wait for the same answer
      reject(signal.reason);
    };
    signal?.addEventListener("abort", end, { once: true });
    asking.answer.finally(() => signal?.removeEventListener("abort", end)).catch(() => undefined);
  });
  return (await Promise.race([asking.answer, ended])).items;
}

/** Runs jobs, some at a time: a user has 8 requests in progress. */
export async function each(jobs, run, atATime = 3) {
  const waiting = [...jobs];
  const worker = async () => {
    while (waiting.length) await run(waiting.shift());
  };
  await Promise.all(Array.from({ length: Math.min(atATime, jobs.length) }, worker));
}
