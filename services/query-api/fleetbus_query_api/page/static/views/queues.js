// The workqueues of controllers, and the deletions that wait for a person.
import { get } from "../api.js";
import { badge, fill, h, link, section, table } from "../dom.js";
import { clock, count, names, plural, span, titleOf } from "../format.js";
import { commandOf, commands, emptyHint, freshnessLine, repeat } from "../parts.js";

const EVERY = 2;
const SHOWN = 50;

export function openQueues(main, { signal }) {
  const queues = h("div", {}, "Asking …");
  const held = h("div", {}, "Asking …");
  fill(
    main,
    h("h1", { class: "unseen" }, "Queues"),
    section("Held deletions", {}, held, commands("fleetbus fuse")),
    section("Queues", {}, queues, commands("fleetbus queue")),
  );
  repeat(queues, EVERY, signal, async (signal) => drawQueues(queues, await get("/fleet/v1/queues", {}, { signal })));
  repeat(held, EVERY, signal, async (signal) => drawHeld(held, await get("/fleet/v1/held-deletions", {}, { signal })));
  return null;
}

function drawHeld(place, answer) {
  const { used, allowed, windowSeconds } = answer.budget;
  const rows = answer.held.map(heldRow);
  fill(
    place,
    h("p", {}, meter(used, allowed), ` ${count(used)} of ${count(allowed)} deletions that no edit requested are used in ${span(windowSeconds)}, in the whole fleet.`),
    rows.length ? table("Held deletions", ["MultiClusterResource", { text: "Objects", class: "number" }, "Clusters", "Why", "Confirm"], rows) : h("p", {}, badge("no deletions are held", "good")),
    freshnessLine(answer),
  );
}

function heldRow(one) {
  const name = titleOf(one.namespace, one.name);
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("th", { scope: "row" }, link("/rollouts", { namespace: one.namespace, name: one.name }, {}, name)),
    h("td", { class: "number" }, count(one.objects)),
    h("td", {}, names(one.clusters, 6)),
    h("td", {}, badge(one.reason, "warn"), h("div", { class: "dim why" }, one.message)),
    h("td", {}, one.confirmed ? badge("confirmed", "good") : commands(commandOf(["fleetbus", "fuse", "confirm", name]))),
  );
}

function meter(used, allowed) {
  return h("meter", { min: 0, max: allowed, value: used, high: Math.ceil(allowed * 0.7), optimum: 0, "aria-label": "Used budget of deletions" });
}

function drawQueues(place, answer) {
  const rows = answer.items.flatMap((queue) => (queue.clusters.length ? queue.clusters.map((one) => clusterRow(queue, one)) : [emptyRow(queue)]));
  const processing = answer.items.flatMap((queue) => queue.processingItems.map((one) => processingRow(queue, one)));
  const quarantined = answer.items.flatMap((queue) => queue.quarantinedItems.map((one) => quarantinedRow(queue, one)));
  fill(
    place,
    h("p", { class: "freshness" }, badge("live", "good"), ` as the store had it at ${clock(answer.askedAt)}`),
    h("div", { class: "tiles small" }, answer.items.map(queueTile)),
    rows.length ? table("Depth by controller and cluster", HEADS, rows) : emptyHint("No controller has a queue.", "One appears when a controller starts: ", h("code", {}, "fleetbus run controller.py"), "."),
    lists("Processing", processing, ["Controller", "Object", "Worker", "Lease"]),
    lists("Quarantine", quarantined, ["Controller", "Object", { text: "Times", class: "number" }, "Next try", "Release"]),
  );
}

const number = (text) => ({ text, class: "number" });
const HEADS = ["Controller", "Cluster", number("Live"), number("Retry"), number("Initial"), number("Oldest"), number("Quarantine"), "Breaker"];

function queueTile(queue) {
  const tone = queue.quarantined ? "bad" : queue.ready > 100 ? "warn" : "plain";
  const text = `${count(queue.ready)} ready, ${count(queue.delayed)} delayed, ${count(queue.processing)} processing, ${count(queue.quarantined)} in quarantine`;
  return h("div", { class: `tile ${tone}` }, h("b", {}, queue.controller), h("span", {}, text));
}

function clusterRow(queue, one) {
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("th", { scope: "row" }, queue.controller),
    h("td", {}, one.cluster),
    [one.live, one.retry, one.initial].map((value) => h("td", { class: "number" }, count(value))),
    h("td", { class: "number" }, one.oldestSeconds === null ? "" : span(one.oldestSeconds)),
    h("td", { class: "number" }, one.quarantined ? badge(count(one.quarantined), "bad") : "0"),
    h("td", {}, breaker(one.breaker)),
  );
}

function breaker(one) {
  if (one === null) return badge("closed", "good");
  const next = one.probing ? "probing now" : `next probe in ${span(one.nextProbeSeconds)}`;
  return [badge("open", "bad"), ` after ${plural(one.failures, "failure")}, ${next}`];
}

function emptyRow(queue) {
  return h("tr", { "data-row": true, tabindex: "-1" }, h("th", { scope: "row" }, queue.controller), h("td", { class: "dim", colspan: "7" }, "nothing waits"));
}

function lists(title, rows, heads) {
  if (!rows.length) return null;
  const more = rows.length - SHOWN;
  return [h("h3", {}, title), table(title, heads, rows.slice(0, SHOWN)), more > 0 ? h("p", { class: "dim" }, `and ${more} more`) : null];
}

function objectText(one) {
  return [h("b", {}, one.cluster), ` ${titleOf(one.namespace, one.name)}`];
}

function processingRow(queue, one) {
  const lease = one.leaseSeconds >= 0 ? `${span(one.leaseSeconds)} left` : badge(`expired ${span(-one.leaseSeconds)} ago`, "warn");
  return h("tr", { "data-row": true, tabindex: "-1" }, h("th", { scope: "row" }, queue.controller), h("td", {}, objectText(one)), h("td", {}, one.worker || "unknown"), h("td", {}, lease));
}

function quarantinedRow(queue, one) {
  const item = `${one.cluster}/${one.namespace}/${one.name}`;
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("th", { scope: "row" }, queue.controller),
    h("td", {}, objectText(one)),
    h("td", { class: "number" }, count(one.times)),
    h("td", {}, `in ${span(one.nextTrySeconds)}`),
    h("td", {}, commands(commandOf(["fleetbus", "queue", "release", queue.controller, item]))),
  );
}
