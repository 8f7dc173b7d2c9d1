// Asks the query API. The token stays in sessionStorage: never in an address, never in a log.

const KEY = "fleetbus.token";
/** The token where storage is switched off. */
let held = "";

/** Why a request has no answer: the problem details of the API (RFC 9457). */
export class Problem extends Error {
  constructor(status, detail, members = {}) {
    super(detail);
    this.status = status;
    this.members = members;
  }
}

/** The token of this tab; empty without one. */
export function readToken() {
  try {
    return sessionStorage.getItem(KEY) ?? held;
  } catch {
    return held;
  }
}

/** Keeps a token until the tab is closed; forgets it if it is empty. */
export function keepToken(token) {
  held = "";
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    held = token;
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

/** Sends a request; answers the response if it is good. */
async function send(path, params, { signal, headers } = {}) {
  const token = readToken();
  const all = { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(url(path, params), {
      headers: all,
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "the query API does not answer; it is asked again");
  }
  if (response.ok) return response;
  throw await readProblem(response);
}

async function readProblem(response) {
  let found = {};
  try {
    found = (await response.json()) ?? {};
  } catch {
    // a proxy may answer in any form
  }
  const problem = new Problem(response.status, found.detail ?? response.statusText, found);
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
      return await (await send(path, params, options)).json();
    } catch (error) {
      if (error.status !== BUSY || tried >= TRIES) throw error;
      await pause(Math.max(1, error.retryAfter), options.signal);
    }
  }
}

/** Waits; ends early, with an error, when the signal says so. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(signal.reason);
      },
      { once: true },
    );
  });
}

/** Yields the lines of an answer as they arrive, several at a time. */
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      if (parts.length) yield parts;
    }
    if (rest) yield [rest];
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/**
 * Reads a table that the server renders.
 * @returns {Promise<{end: object, rows: string[]}>} rows as JSON text, which is smaller than arrays.
 */
export async function readTable(path, params, { signal, onHead }) {
  const response = await send(path, { ...params, view: "table" }, { signal });
  const rows = [];
  let head = null;
  for await (const batch of lines(response)) {
    for (const line of batch) {
      if (head === null) {
        head = JSON.parse(line);
        onHead(head);
      } else if (line.startsWith("[")) rows.push(line);
      else if (line.startsWith("{")) {
        const found = JSON.parse(line);
        if (found.error) throw new Problem(0, found.error);
        return { rows, end: found.end };
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
  const headers = since ? { "Last-Event-ID": since } : {};
  const response = await send("/fleet/v1/events", params, { signal, headers });
  let block = { id: "", event: "message", data: "" };
  for await (const batch of lines(response)) {
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

let known = null;

/** The types of resources that the user may know of; asked once per minute. */
export async function types(options) {
  if (known === null || Date.now() - known.at > 60_000 || known.token !== readToken()) {
    const asked = get("/fleet/v1/resources", {}, options);
    known = { at: Date.now(), token: readToken(), asked };
    asked.catch(() => {
      known = null;
    });
  }
  return (await known.asked).items;
}

/** Runs jobs, some at a time: a user has 8 requests in progress. */
export async function each(jobs, run, atATime = 3) {
  const waiting = [...jobs];
  const worker = async () => {
    while (waiting.length) await run(waiting.shift());
  };
  await Promise.all(Array.from({ length: Math.min(atATime, jobs.length) }, worker));
}
