// What happened to one object: change, bus, queue, reconcile, apply, and how long each took.
import { get, objectPath } from "../api.js";
import { badge, fill, h } from "../dom.js";
import { clock, plural, shortPair, span, titleOf } from "../format.js";
import { isStatus } from "../trees.js";
import { commandOf, commands, freshnessLine, shown, toneOf, windowLine } from "../parts.js";

const SINCE = [["1h", "the last hour"], ["6h", "6 hours"], ["24h", "a day"], ["7d", "a week"]];
const DEFAULT = "24h";
const MOST = 200;
const SLOW = 1;

export function openTimeline(body, context, asked, cluster) {
  const { params, signal } = context;
  const since = params.get("since") ?? DEFAULT;
  const choice = h("select", { name: "since", "aria-label": "Period" }, SINCE.map(([key, text]) => h("option", { value: key, selected: key === since }, text)));
  choice.addEventListener("change", () => context.go(context.with({ since: choice.value }), { replace: true }));
  const place = h("div", {}, h("p", { role: "status" }, "Reading the log of changes …"));
  const explain = commandOf(["fleetbus", "timeline", cluster, asked.resource, titleOf(asked.namespace, asked.name)], [["--since", since]]);
  fill(body, h("label", { class: "inline" }, `In ${cluster || "no cluster"}, `, choice), place, commands(explain));
  if (!cluster) {
    fill(place, h("p", { class: "hint" }, "Choose a cluster: a timeline is that of an object in one cluster."));
    return;
  }
  shown(place, signal, async (signal) => {
    const answer = await get(objectPath("timeline", cluster, asked), { since, limit: MOST }, { signal });
    const entries = [...answer.entries].reverse();
    fill(
      place,
      windowLine(answer.window),
      answer.freshness ? freshnessLine(answer) : null,
      h("p", { class: "status", role: "status" }, `${plural(entries.length, "entry", "entries")}, the newest first${answer.hasMore ? "; there are earlier ones" : ""}.`),
      h("ol", { class: "timeline" }, entries.map((entry, at) => timelineEntry(entry, entries[at + 1], { ...answer.object, context }))),
    );
  });
}

function timelineEntry(entry, before, about) {
  const gap = before ? span((Date.parse(entry.time) - Date.parse(before.time)) / 1000) : "";
  const parts = { change: changeParts, reconcile: reconcileParts, distribution: distributionParts }[entry.stage];
  return h(
    "li",
    { class: `stage-${entry.stage}`, "data-row": true, tabindex: "-1" },
    h("time", { datetime: entry.time, title: entry.time }, clock(entry.time, { millis: true }), gap ? h("span", { class: "dim" }, ` +${gap}`) : null),
    h("div", {}, parts ? parts(entry, about) : `${entry.stage}`),
  );
}

function changeParts(entry, { context }) {
  const fields = (entry.differences ?? []).map(fieldChange);
  const more = entry.moreDifferences ? h("p", { class: "dim" }, `and ${plural(entry.moreDifferences, "more field")}`) : null;
  return [
    h(
      "p",
      {},
      badge(entry.verb, entry.verb === "deleted" ? "bad" : entry.verb === "added" ? "good" : "accent"),
      ` version ${entry.resourceVersion} `,
      h("a", { href: context.with({ asOf: entry.time, tab: "yaml" }) }, "as it was then"),
      fields.length && entry.differences.every((one) => isStatus(one.path)) ? [" ", badge("status only")] : null,
      entry.foundByList ? [" ", badge("found by a list", "warn", { title: "it may have happened earlier" })] : null,
      entry.degraded ? [" ", badge(`no body: ${entry.degraded}`, "warn")] : null,
    ),
    steps([["change", null], ["bus", entry.storedAfterSeconds]]),
    fields.length ? h("ul", { class: "changes" }, fields) : null,
    more,
  ];
}

/** One field: what it was, and what it is. */
export function fieldChange({ path, before, after }) {
  const [old, now] = shortPair(before ?? undefined, after ?? undefined);
  return h("li", {}, h("code", {}, path), " ", h("del", {}, old), " → ", h("ins", {}, now));
}

/** The request of a run, if it is not that of the object itself. */
function requestText(request, { cluster, namespace, name }) {
  if (!request || (request.cluster === cluster && request.namespace === namespace && request.name === name)) return "";
  return ` for ${request.cluster} ${titleOf(request.namespace, request.name)}`;
}

function reconcileParts(entry, about) {
  const outcome = entry.outcome || (entry.endedAt ? "ended" : "runs");
  return [
    h("p", {}, badge(outcome, toneOf(entry.error ? "failed" : outcome)), " by ", h("b", {}, entry.controller), requestText(entry.request, about), entry.attempt ? `, attempt ${entry.attempt + 1}` : ""),
    steps([["queue", entry.waitedSeconds], ["reconcile", entry.ranSeconds]]),
    entry.error ? h("p", { class: "problem" }, entry.error) : null,
  ];
}

function distributionParts(entry) {
  const owner = entry.owner ? titleOf(entry.owner.namespace, entry.owner.name) : "";
  const target = entry.owner ? h("a", { href: `/rollouts?${new URLSearchParams({ namespace: entry.owner.namespace, name: entry.owner.name })}` }, owner) : "";
  return [h("p", {}, badge(entry.event, toneOf(entry.event)), " by MultiClusterResource ", target, entry.wave ? `, wave ${entry.wave}` : ""), steps([["apply", null]]), entry.message || entry.reason ? h("p", { class: "dim" }, entry.message || entry.reason) : null];
}

/** The steps of an entry with the time that each took. */
function steps(list) {
  return h(
    "p",
    { class: "steps" },
    list.map(([name, seconds], at) => [
      at ? h("span", { "aria-hidden": "true", class: "dim" }, " → ") : null,
      h("span", { class: `step ${seconds > SLOW ? "slow" : ""}` }, name, seconds === null || seconds === undefined ? null : h("b", {}, ` ${span(seconds)}`)),
    ]),
  );
}

/** The field and the slider that choose a moment of the past. */
export function timeControl(context, asked, cluster) {
  const { params, signal } = context;
  const asOf = params.get("asOf") ?? "";
  const text = h("input", { name: "asOf", value: asOf, placeholder: "now, 10m, 2026-01-31T12:00:00Z", "aria-label": "As of", spellcheck: "false", autocomplete: "off" });
  text.addEventListener("change", () => context.go(context.with({ asOf: text.value.trim() === "now" ? "" : text.value.trim() })));
  const place = h("div", { class: "slider" });
  const control = h("div", { class: "time", role: "group", "aria-label": "Moment" }, h("label", {}, "As of ", text), place, asOf ? h("a", { class: "button", href: context.with({ asOf: "" }) }, "Now") : null);
  shown(place, signal, async (signal) => {
    try {
      await addSlider(place, { ...context, signal }, asOf);
    } catch (error) {
      if (error.status !== 404 && error.status !== 503) throw error;
      fill(place, h("span", { class: "dim" }, `No history: ${error.message}`)); // there is only now
    }
  });
  return control;
}

async function addSlider(place, context, asOf) {
  const { window } = await get("/fleet/v1/history", {}, { signal: context.signal });
  const [from, to] = [Date.parse(window.from), Date.now()];
  const value = asOf ? (Number.isNaN(Date.parse(asOf)) ? to : Date.parse(asOf)) : to;
  const slider = h("input", { type: "range", name: "moment", min: from, max: to, step: 1000, "aria-label": "Moment between the beginning of the history and now" });
  slider.value = String(value);
  const shownTime = h("output", {}, asOf ? clock(new Date(value).toISOString()) : "now");
  const isNow = () => Number(slider.value) >= to - 1000;
  const label = () => {
    const time = isNow() ? "now" : clock(new Date(Number(slider.value)).toISOString());
    shownTime.textContent = time;
    slider.setAttribute("aria-valuetext", time);
  };
  slider.addEventListener("input", label);
  slider.addEventListener("change", () => context.go(context.with({ asOf: isNow() ? "" : new Date(Number(slider.value)).toISOString() })));
  label();
  fill(place, h("span", { class: "dim" }, clock(window.from)), slider, shownTime);
}
