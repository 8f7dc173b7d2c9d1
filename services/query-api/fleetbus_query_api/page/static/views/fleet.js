// The fleet at a glance: every cluster, and what differs between them.
import { apiPath, each, get, Problem, types } from "../api.js";
import { badge, fill, h, link, objectAddress, section, table } from "../dom.js";
import { count, names, plural, resourceName, shortPair, span, titleOf } from "../format.js";
import { readIntents, reasonOf } from "../intent.js";
import { commands, emptyHint, freshnessLine, repeat, shown } from "../parts.js";

const EVERY = 5;
/** Types whose objects have random names or change all the time: comparing them says nothing. */
const BY_NATURE = new Set(["pods", "events", "replicasets", "endpoints", "endpointslices", "leases", "nodes", "controllerrevisions"]);
const RANKS = [
  ["deployments.apps", "statefulsets.apps", "daemonsets.apps", "cronjobs.batch", "rollouts.argoproj.io"],
  ["services", "ingresses.networking.k8s.io", "horizontalpodautoscalers.autoscaling", "networkpolicies.networking.k8s.io"],
  ["configmaps", "secrets", "persistentvolumeclaims"],
];
const MOST_FINDINGS = 40;
const AT_A_TIME = 4;

export function openFleet(main, { params, signal }) {
  const only = params.get("cluster") ?? "";
  const summary = h("div", { class: "tiles" });
  const findings = h("div", { class: "findings" }, h("p", { class: "dim" }, "Comparing the objects of all clusters …"));
  const trouble = h("div");
  const place = h("div", {}, "Asking …");
  const state = { only, clusters: [], intents: new Map(), counts: new Map(), perType: new Map(), placed: new Map(), outliers: [], done: new Set(), isCounted: false, isCompared: false, notes: [] };
  const line = h("div");
  const filter = only ? h("p", {}, badge(`only ${only}`, "accent"), " ", link("/", {}, {}, "show all")) : null;
  fill(
    main,
    h("h1", { class: "unseen" }, "Fleet"),
    summary,
    line,
    section("What differs", {}, filter, findings, trouble),
    section("Clusters", {}, place),
    commands("fleetbus clusters"),
  );
  const draw = () => {
    drawSummary(summary, state);
    drawFindings(findings, state);
    drawClusters(place, state);
  };
  let planned = 0;
  const plan = () => {
    cancelAnimationFrame(planned); // many answers arrive at a time
    planned = requestAnimationFrame(() => signal.aborted || draw());
  };
  let isFirst = true;
  repeat(place, EVERY, signal, async (inner) => {
    const answer = await get("/fleet/v1/clusters", {}, { signal: inner });
    state.clusters = answer.items;
    state.freshness = answer.freshness;
    fill(line, freshnessLine(answer));
    draw();
    if (isFirst) {
      performance.mark("fleet-shown");
      isFirst = false;
      shown(trouble, signal, (inner, received) => compare(state, inner, () => (received(), plan())));
    }
  });
}

/** Compares type by type, the workloads first, and counts; a repetition does what is missing. */
async function compare(state, signal, draw) {
  const [all, intents] = await Promise.all([types({ signal }), readIntents(state.clusters, { signal })]);
  state.intents = intents;
  const known = all.map((type) => ({ ...type, resource: resourceName(type) })).sort((a, b) => rankOf(a.resource) - rankOf(b.resource));
  const comparing = known.filter((type) => !BY_NATURE.has(type.plural)).map((type) => [`compare ${type.resource}`, () => compareType(state, type, signal)]);
  const counting = known.map((type) => [`count ${type.resource}`, () => countType(state, type, signal)]);
  const problems = [];
  const perform = async ([id, job]) => {
    if (state.done.has(id)) return;
    try {
      await job();
    } catch (error) {
      if (signal.aborted) throw error;
      if (error.status !== 404) return problems.push([id, error]);
    }
    state.done.add(id);
    state.isCounted = counting.every(([id]) => state.done.has(id));
    state.isCompared = comparing.every(([id]) => state.done.has(id));
    if (state.isCompared) performance.mark("fleet-compared");
    draw();
  };
  await each([...comparing, ...counting], perform, AT_A_TIME);
  await each(placed(state), (resource) => perform([`placed ${resource}`, () => countPlaced(state, resource, signal)]), AT_A_TIME);
  if (problems.length) throw problemOf(problems);
}

function problemOf([[id, error], ...others]) {
  const more = others.length ? ` (and ${plural(others.length, "more request")} failed)` : "";
  return new Problem(error.status, `Not all is compared: ${id}: ${error.message}${more}`);
}

async function countType(state, { resource }, signal) {
  const answer = await get(apiPath("counts", resource), { by: "cluster", limit: 1000 }, { signal });
  const numbers = new Map(answer.groups.map((group) => [group.values.cluster, group.count]));
  state.perType.set(resource, numbers);
  for (const [cluster, number] of numbers) state.counts.set(cluster, (state.counts.get(cluster) ?? 0) + number);
}

/** Types with different numbers of objects: a placement may be the reason. */
function placed(state) {
  return state.intents.size ? unequal(state, state.perType).map(({ resource }) => resource) : [];
}

/** Counts the objects that no mark of an owner in another cluster has put there. */
async function countPlaced(state, resource, signal) {
  const answer = await get(apiPath("counts", resource), { by: "cluster", limit: 1000, labelSelector: "!fleetbus.dev/owner-uid" }, { signal });
  state.placed.set(resource, new Map(answer.groups.map((group) => [group.values.cluster, group.count])));
}

async function compareType(state, { resource, kind }, signal) {
  const answer = await get(apiPath("outliers", resource), { limit: 20 }, { signal });
  state.outliers.push(...answer.items.map((item) => ({ ...item, resource, kind })));
  if (answer.remaining) state.notes.push(`${resource}: ${plural(answer.remaining, "more name")} differ`);
}

/** Where a type stands in the list: workloads, what leads to them, their settings, the others. */
function rankOf(resource) {
  const rank = RANKS.findIndex((names) => names.includes(resource));
  return rank < 0 ? RANKS.length : rank;
}

function drawSummary(place, { clusters, counts, isCounted }) {
  const complete = clusters.filter((one) => one.complete).length;
  const versions = new Set(clusters.map((one) => one.serverVersion).filter(Boolean));
  const total = [...counts.values()].reduce((sum, one) => sum + one, 0);
  const lost = clusters.length - complete;
  fill(
    place,
    tile(count(clusters.length), clusters.length === 1 ? "cluster" : "clusters"),
    tile(count(complete), "complete", "good"),
    tile(count(lost), "incomplete", lost ? "warn" : "plain"),
    tile(count(versions.size), versions.size === 1 ? "version" : "versions"),
    tile(isCounted ? count(total) : `${count(total)} …`, "objects that you may list"),
  );
}

function tile(number, text, tone = "plain") {
  return h("div", { class: `tile ${tone}` }, h("b", {}, number), h("span", {}, text));
}

function drawFindings(place, state) {
  const rows = [...incomplete(state), ...versions(state), ...numbers(state), ...objects(state)];
  const open = rows.filter((row) => !row.isIntended);
  const intended = rows.filter((row) => row.isIntended);
  const more = open.length - MOST_FINDINGS;
  const isOpen = place.querySelector("details")?.open;
  const isFocused = place.contains(document.activeElement);
  if (isFocused && place.dataset.rows === String(rows.length)) return; // the row under the focus stays
  place.dataset.rows = String(rows.length);
  fill(
    place,
    h("ul", { class: "rows" }, open.slice(0, MOST_FINDINGS).map((row) => row.element)),
    more > 0 ? h("p", { class: "dim" }, `and ${more} more`) : null,
    intended.length ? intendedBox(intended, isOpen) : null,
    state.notes.map((text) => h("p", { class: "dim" }, text)),
    state.isCompared ? null : h("p", { class: "dim" }, "Still comparing …"),
    rows.length || !state.isCompared ? null : h("p", {}, badge("same everywhere", "good"), " Every object that several clusters have is the same in all of them."),
    !open.length && intended.length && state.isCompared ? h("p", {}, badge("as intended", "good"), " Nothing else differs.") : null,
  );
}

function intendedBox(rows, isOpen) {
  const text = ` ${plural(rows.length, "difference")} that MultiClusterResources intend`;
  return h(
    "details",
    { open: isOpen },
    h("summary", {}, badge("intended", "good"), text),
    h("ul", { class: "rows" }, rows.slice(0, MOST_FINDINGS).map((row) => row.element)),
    rows.length > MOST_FINDINGS ? h("p", { class: "dim" }, `and ${rows.length - MOST_FINDINGS} more`) : null,
  );
}

function finding(tone, word, text, more, isIntended = false) {
  return { isIntended, element: h("li", { "data-row": true, tabindex: "-1" }, badge(word, tone), h("span", {}, text), more ? h("span", { class: "fields" }, more) : null) };
}

/** Whether some of the clusters are those that the view is about. */
function isMeant(only, clusters) {
  return !only || clusters.includes(only);
}

function incomplete({ clusters, freshness, only }) {
  return clusters
    .filter((one) => !one.complete && isMeant(only, [one.name]))
    .map((one) => finding("warn", "incomplete", [h("b", {}, one.name), ": ", one.message || one.reason || freshness[one.name]?.reason || "no reason is known"], ""));
}

function versions({ clusters, only }) {
  const groups = Map.groupBy(clusters.filter((one) => one.serverVersion), (one) => one.serverVersion);
  if (groups.size < 2) return [];
  const sorted = [...groups.entries()].sort((a, b) => b[1].length - a[1].length);
  const [usual, members] = sorted[0];
  const meant = sorted.slice(1).filter(([, others]) => isMeant(only, others.map((one) => one.name)));
  return meant.map(([version, others]) =>
    finding("plain", "version", [h("b", {}, names(others.map((one) => one.name))), ` ${others.length === 1 ? "runs" : "run"} ${version}`], `${members.length} of ${clusters.length} run ${usual}`),
  );
}

/** Types of which most clusters have the same number of objects, and some another. */
function unequal({ clusters }, perType) {
  return [...perType].flatMap(([resource, counted]) => {
    if (BY_NATURE.has(resource.split(".")[0])) return [];
    const members = clusters.filter((one) => one.complete && !one.hub);
    const groups = Map.groupBy(members, (one) => counted.get(one.name) ?? 0);
    const [[usual, most] = [0, []], ...others] = [...groups].sort((a, b) => b[1].length - a[1].length);
    return others.length && most.length * 2 > members.length ? [{ resource, usual, most, others, all: members.length }] : [];
  });
}

function numbers(state) {
  if (!state.isCounted) return [];
  return unequal(state, state.perType).flatMap(({ resource, usual, most, others, all }) => {
    const isPlaced = state.placed.has(resource) && !unequal(state, new Map([[resource, state.placed.get(resource)]])).length;
    return others.filter(([, list]) => isMeant(state.only, list.map((one) => one.name))).map(([number, list]) => {
      const clusters = list.map((one) => one.name);
      const target = link("/search", { resource, cluster: clusters.join(",") }, {}, `${count(number)} ${resource}`);
      const text = [h("b", {}, names(clusters)), list.length === 1 ? " has " : " have ", target];
      const more = `${most.length} of ${all} clusters have ${count(usual)}${isPlaced ? "; placements of MultiClusterResources make the difference" : ""}`;
      return finding(isPlaced ? "good" : "plain", isPlaced ? "placement" : "number", text, more, isPlaced);
    });
  });
}

function objects(state) {
  const meant = state.outliers.filter((item) => isMeant(state.only, item.variants.slice(1).flatMap((one) => one.clusters)));
  const rows = meant.map((item) => ({ item, reasons: reasonsOf(state, item) }));
  rows.sort((a, b) => rankOf(a.item.resource) - rankOf(b.item.resource) || minority(a.item) - minority(b.item));
  return rows.map(({ item, reasons }) => objectFinding(state, item, reasons));
}

/** Why each field differs, where the MultiClusterResource of the object says so; empty for the others. */
function reasonsOf({ intents, clusters }, item) {
  const resource = item.owner ? intents.get(item.owner.uid) : null;
  if (!resource) return item.differences.map(() => "");
  const having = item.variants.flatMap((one) => one.clusters);
  const members = clusters.filter((one) => having.includes(one.name));
  return item.differences.map((one) => reasonOf(resource, item, one.path, members));
}

function objectFinding(state, item, reasons) {
  const [usual, ...others] = item.variants;
  const where = others.map((one) => names(one.clusters, 4)).join("; ");
  const target = objectAddress({ resource: item.resource, namespace: item.namespace, name: item.name, cluster: others[0]?.clusters[0] });
  const isIntended = reasons.every(Boolean);
  const by = isIntended ? h("span", { class: "dim" }, ` (${[...new Set(reasons)].join(" and ")} of MultiClusterResource ${titleOf(item.owner.namespace, item.owner.name)})`) : null;
  const text = [h("a", { href: target }, `${item.kind} ${titleOf(item.namespace, item.name)}`), " differs in ", h("b", {}, where), by];
  const open = item.differences.filter((_, at) => isIntended || !reasons[at]);
  const fields = open.slice(0, 2).map((one) => difference(one, usual, others[0]));
  const more = [open.length > 2 ? `and ${plural(open.length - 2, "more field")}` : "", open.length < reasons.length ? `${plural(reasons.length - open.length, "field")} as intended` : ""].filter(Boolean);
  return finding(isIntended ? "good" : "warn", isIntended ? "intended" : "differs", text, [fields, more.length ? h("span", { class: "dim" }, more.join("; ")) : null], isIntended);
}

/** How many clusters do not have the usual form: few of many are the interesting ones. */
function minority(item) {
  return item.variants.slice(1).reduce((sum, one) => sum + one.clusters.length, 0);
}

function difference(one, usual, other) {
  const [before, after] = shortPair(one.values[usual.digest], one.values[other?.digest], 40);
  return h("span", { class: "field" }, h("code", {}, one.path), " ", h("del", {}, before), " → ", h("ins", {}, after));
}

function drawClusters(place, { clusters, freshness, counts, isCounted }) {
  const focused = document.activeElement?.closest?.("[data-cluster]")?.dataset.cluster;
  const rows = clusters.map((one) => clusterRow(one, freshness[one.name], counts.get(one.name) ?? 0, isCounted));
  if (!clusters.length) {
    fill(place, emptyHint("No cluster that you may see has joined the fleet.", "Join one with ", h("code", {}, "fleetbus join NAME --context CONTEXT --bootstrap"), "."));
    return;
  }
  fill(place, table("Clusters of the fleet", ["Cluster", "State", "Last answer", "Access", "Version", { text: "Objects", class: "number" }, { text: "Types", class: "number" }, "Labels"], rows));
  if (focused) place.querySelector(`[data-cluster="${CSS.escape(focused)}"]`)?.focus();
}

/** The way to the API server; of an agent also when it last answered the hub. */
function accessCell(one) {
  if (!one.agent) return h("td", {}, one.access);
  const contact = one.agent.answeredAt ? `${span((Date.now() - Date.parse(one.agent.answeredAt)) / 1000)} ago` : "never";
  const state = one.agent.connected ? null : [" ", badge("not connected", "bad")];
  return h("td", { title: one.agent.message }, one.access, state, h("div", { class: "dim" }, contact));
}

function clusterRow(one, fresh, objectCount, isCounted) {
  const state = one.complete ? badge("complete", "good") : badge(one.connected ? fresh.state : one.reason || "not connected", one.connected ? "warn" : "bad");
  const labels = Object.entries(one.labels).map(([key, value]) => h("span", { class: "chip" }, `${key}=${value}`));
  const types = `${one.completeResourceCount}/${one.resourceCount}`;
  return h(
    "tr",
    { "data-row": true, "data-cluster": one.name, tabindex: "-1" },
    h("th", { scope: "row" }, link("/", { cluster: one.name }, { title: "what differs there" }, one.name), one.hub ? [" ", badge("hub", "accent")] : null),
    h("td", {}, state, one.complete ? null : h("div", { class: "dim why" }, one.message || fresh.reason)),
    h("td", {}, fresh.ageSeconds === null ? "never" : `${span(fresh.ageSeconds)} ago`),
    accessCell(one),
    h("td", { title: one.platform }, one.serverVersion || "unknown"),
    h("td", { class: "number" }, link("/search", { resource: "pods", cluster: one.name }, { title: "its pods" }, isCounted ? count(objectCount) : `${count(objectCount)} …`)),
    h("td", { class: "number", title: "complete, of those that are watched" }, types),
    h("td", {}, labels),
  );
}
