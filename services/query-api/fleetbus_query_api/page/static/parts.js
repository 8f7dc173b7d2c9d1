// What several views show: commands, freshness, problems, filters.
import { PATIENCE, pause } from "./api.js";
import { announce, badge, fill, h, link } from "./dom.js";
import { ago, clock, names, plural, span } from "./format.js";

const SAFE = /^[A-Za-z0-9_./:=,@%+-]+$/;
/** What a terminal acts on when it is pasted, or shows in another order or not at all. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;
const NOT_PLAIN = /[\\'\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/** A word of a shell. */
export function quoted(word) {
  const text = String(word);
  if (SAFE.test(text)) return text;
  if (!UNSEEN.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const escaped = (letter) => `\\U${letter.codePointAt(0).toString(16).padStart(8, "0")}`;
  return `$'${text.replace(NOT_PLAIN, escaped)}'`;
}

/**
 * A command of words; options without a value are left out. Empty if a word would be an option: no
 * type and no name begins with a dash, but an address that somebody else has written may.
 */
export function commandOf(words, options = []) {
  if (words.some((word) => word.startsWith("-"))) return "";
  const found = words.filter((word) => word !== "").map(quoted);
  for (const [name, value] of options) {
    if (value === true) found.push(name);
    else if (value) found.push(name, quoted(value));
  }
  return found.join(" ");
}

/** A command that asks the API for a path. */
export function curlOf(path) {
  return `curl -H "Authorization: Bearer $TOKEN" ${quoted(location.origin + path)}`;
}

/** Shows the commands that give the same answer. */
export function commands(...list) {
  const rows = list.filter(Boolean).map((text) => {
    const button = h("button", { type: "button", class: "quiet", "aria-label": `Copy: ${text}` }, "copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
        announce("The command is copied.");
      } catch {
        getSelection()?.selectAllChildren(button.previousElementSibling);
        button.textContent = "press Ctrl-C";
      }
    });
    return h("div", { class: "command" }, h("span", { "aria-hidden": "true", class: "prompt" }, "$"), h("code", {}, text), button);
  });
  return h("div", { class: "commands", role: "group", "aria-label": "The same in a terminal" }, rows);
}

/** Shows how fresh an answer is, and which clusters may lack something. */
export function freshnessLine(answer, { at = new Date(), about = "" } = {}) {
  const known = answer.freshness ?? {};
  const clusters = Object.keys(known);
  const incomplete = answer.incomplete ?? [];
  const ages = clusters.map((name) => known[name].ageSeconds).filter((age) => age !== null);
  const oldest = ages.length ? Math.max(...ages) : null;
  const head = clusters.length
    ? `${plural(clusters.length, "cluster")}, ${clusters.length - incomplete.length} complete`
    : "no cluster";
  const parts = [
    badge(incomplete.length ? "incomplete" : "complete", incomplete.length ? "warn" : "good"),
    about ? h("b", {}, ` ${about}`) : null,
    ` ${head}`,
    oldest === null ? "" : ` · oldest answer of an API server ${span(oldest)} ago`,
    ` · asked at ${at.toTimeString().slice(0, 8)}`,
  ];
  if (!incomplete.length) return h("p", { class: "freshness" }, parts);
  const rows = incomplete.map((name) => h("li", {}, h("b", {}, name), ": ", reasonOf(known[name])));
  return h(
    "details",
    { class: "freshness", open: incomplete.length <= 3 },
    h("summary", {}, parts, ` · may lack something: ${names(incomplete, 4)}`),
    h("ul", {}, rows),
  );
}

function reasonOf(one) {
  if (!one) return "not in this answer";
  const age = one.ageSeconds === null ? "it never answered" : `it answered ${span(one.ageSeconds)} ago`;
  return one.reason ? `${one.reason} (${age})` : age;
}

/** Shows the window of an answer about the past, and its gaps. */
export function windowLine(window) {
  if (!window) return null;
  const gaps = window.gaps ?? [];
  const text = `History since ${ago(window.from)}`;
  if (!gaps.length) return h("p", { class: "freshness" }, badge("no gap", "good"), ` ${text}`);
  const rows = gaps.map((gap) =>
    h("li", {}, h("b", {}, gap.cluster ?? "all clusters"), `: ${gap.from ? clock(gap.from) : "unknown"} to ${clock(gap.to)}: ${gap.reason}`),
  );
  return h(
    "details",
    { class: "freshness", open: gaps.length <= 3 },
    h("summary", {}, badge(plural(gaps.length, "gap"), "warn"), ` ${text}`),
    h("ul", {}, rows),
  );
}

/** Shows why there is no answer, with a button that asks again. */
export function problemBox(error, retry = null) {
  const text = error.status ? `${error.status}: ${error.message}` : String(error.message ?? error);
  const again = error.isPassing ? `${text}; retrying…` : text;
  const button = retry ? h("button", { type: "button", class: "retry", onclick: retry }, "Retry") : null;
  return h("div", { class: "problem", role: "alert" }, h("p", {}, again), adviceOf(error), button);
}

function adviceOf(error) {
  if (error.status === 404)
    return h("p", {}, "Objects and types that you may not read return 404, too. ", link("/search", {}, {}, "Types of the fleet"));
  if (error.status === 429) return h("p", {}, "The API limits the requests of one user. Try again in a moment.");
  return null;
}

/** Says that there is nothing, and what to try. */
export function emptyHint(text, ...advice) {
  return h("div", { class: "hint" }, h("p", {}, text), h("p", {}, advice));
}

/** Shows a problem in a place: above an answer that is there, else alone. */
function showProblem(place, box) {
  place.querySelector(":scope > .problem, :scope > .waiting")?.remove();
  if (place.dataset.answered) place.prepend(box);
  else fill(place, box);
}

/**
 * Runs a job once. Shows in a place that it takes long, and its problem if it fails.
 * @param {(signal: AbortSignal, received: (patience?: number) => void) => Promise} job calls `received` when
 *   a part of the answer is there; with Infinity if it may be silent from then on.
 * @param {() => void} retry called when somebody presses the button.
 * @returns {Promise<Error | null>} the problem.
 */
async function attempt(place, signal, job, retry) {
  const ending = new AbortController();
  const again = () => {
    ending.abort();
    retry();
  };
  const wait = () => setTimeout(() => showProblem(place, waitingBox(again)), PATIENCE.slow * 1000);
  let slow = wait();
  const received = (patience = PATIENCE.slow) => {
    clearTimeout(slow);
    place.querySelector(":scope > .waiting")?.remove();
    slow = patience === Infinity ? 0 : wait();
  };
  try {
    await job(AbortSignal.any([signal, ending.signal]), received);
    place.querySelector(":scope > .problem, :scope > .waiting")?.remove();
    place.dataset.answered = "1";
    return null;
  } catch (error) {
    if (!signal.aborted && !ending.signal.aborted) showProblem(place, problemBox(error, retry));
    return error;
  } finally {
    clearTimeout(slow);
  }
}

function waitingBox(retry) {
  const button = h("button", { type: "button", class: "retry", onclick: retry }, "Retry");
  return h("div", { class: "waiting", role: "alert" }, h("p", {}, "The query API is not responding yet; still waiting…"), button);
}

/** Runs a job again and again: `pauseAfter` says when, in seconds; the button at a problem, at once. */
async function run(place, signal, job, pauseAfter) {
  while (!signal.aborted) {
    const next = new AbortController();
    const problem = await attempt(place, signal, job, () => next.abort());
    const seconds = pauseAfter(problem);
    if (seconds === null) return;
    await pause(seconds, AbortSignal.any([signal, next.signal])).catch(() => undefined);
  }
}

const A_DAY = 86_400;

/** Runs a job until it succeeds; what fails for good is run again when somebody presses the button. */
export function shown(place, signal, job) {
  return run(place, signal, job, (problem) => (problem ? (problem.isPassing ? PATIENCE.again : A_DAY) : null));
}

/** Runs a job now and then while the page is seen and the view is open. */
export function repeat(place, seconds, signal, job) {
  return run(place, signal, (inner, received) => (document.hidden ? null : job(inner, received)), () => seconds);
}

/**
 * A form of filters; what is entered goes into the address.
 * @param {{name: string, label: string, placeholder?: string, list?: string, wide?: boolean,
 *   choices?: string[], check?: boolean}[]} fields
 */
export function filters(fields, params, apply) {
  const inputs = fields.map((field) => h("label", { class: field.wide ? "wide" : "" }, h("span", {}, field.label), inputOf(field, params)));
  const form = h("form", { class: "filters", role: "search" }, inputs, h("button", { type: "submit" }, "Show"));
  const submit = () => {
    const values = {};
    for (const field of fields) {
      const input = form.elements.namedItem(field.name);
      values[field.name] = field.check ? input.checked : input.value.trim();
    }
    apply(values);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("change", submit);
  return form;
}

function inputOf(field, params) {
  const value = params.get(field.name) ?? field.value ?? "";
  if (field.check) return h("input", { type: "checkbox", name: field.name, checked: value === "1" });
  if (field.choices) {
    const options = field.choices.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
    return h("select", { name: field.name }, options);
  }
  return h("input", {
    name: field.name,
    value,
    placeholder: field.placeholder,
    list: field.list,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
  });
}

/** The colour of a word that Kubernetes or fleetbus uses for a state. */
export function toneOf(word) {
  const text = String(word).toLowerCase();
  if (/fail|error|crash|evict|conflict|unreachable|degraded|oom|backoff|deleted|missing|stale/.test(text)) return "bad";
  if (/pending|wait|progress|held|drift|paused|terminating|unknown|listing|delet|open\b|notready|incomplete/.test(text)) return "warn";
  if (/running|applied|ready|active|bound|complete|succeed|success|passed|synced|true|healthy|added|available/.test(text)) return "good";
  return "plain";
}
