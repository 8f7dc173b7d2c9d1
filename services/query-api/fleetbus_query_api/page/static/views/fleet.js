// The fleet at a glance: every cluster, and what differs between them.
import { each, get, types } from "../api.js";
import { badge, fill, h, link, objectAddress, section, table } from "../dom.js";
import { count, names, plural, resourceName, shortPair, span, titleOf } from "../format.js";
import { commands, freshnessLine, repeat, shown } from "../parts.js";

const EVERY = 5;
/** Types whose objects have random names or change all the time: comparing them says nothing. */
const BY_NATURE = new Set(["pods", "events", "replicasets", "endpoints", "endpointslices", "leases", "nodes", "controllerrevisions"]);
const MOST_FINDINGS = 40;

export function openFleet(main, { params, signal }) {
  const only = params.get("cluster") ?? "";
  const summary = h("div", { class: "tiles" });
  const found = h("div", { class: "findings" }, h("p", { class: "dim" }, "Comparing the objects of all clusters …"));
  const place = h("div");
  const state = { only, clusters: [], counts: new Map(), perType: new Map(), outliers: [], isCounted: false, isCompared: false, problems: [] };
  const line = h("div");
  const filter = only ? h("p", {}, badge(`only ${only}`, "accent"), " ", link("/", {}, {}, "show all")) : null;
  fill(
    main,
    h("h1", { class: "unseen" }, "Fleet"),
    summary,
    line,
    section("What differs", {}, filter, found),
    section("Clusters", {}, place),
    commands("fleetbus clusters"),
  );
  const draw = () => {
    drawSummary(summary, state);
    drawFindings(found, state);
    drawClusters(place, state);
  };
  let isFirst = true;
  repeat(EVERY, signal, async () => {
    await shown(place, signal, async () => {
      const answer = await get("/fleet/v1/clusters", {}, { signal });
      state.clusters = answer.items;
      state.freshness = answer.freshness;
      fill(line, freshnessLine(answer));
      draw();
      if (isFirst) {
        performance.mark("fleet-shown");
        isFirst = false;
        compare(state, signal, draw);
      }
    });
  });
}

async function compare(state, signal, draw) {
  try {
    const known = await types({ signal });
    await each(known, (type) => countOne(state, type, signal).then(draw));
    state.isCounted = true;
    draw();
    const compared = known.filter((type) => !BY_NATURE.has(type.plural) && (state.perType.get(resourceName(type))?.size ?? 0) > 1);
    await each(compared, (type) => compareOne(state, type, signal), 2);
    state.isCompared = true;
    draw();
  } catch (error) {
    if (signal.aborted) return;
    state.problems.push(`The comparison broke off: ${error.message}`);
    draw();
  }
}

async function countOne(state, type, signal) {
  const name = resourceName(type);
  try {
    const answer = await get(`/fleet/v1/counts/${name}`, { by: "cluster", limit: 1000 }, { signal });
    const found = new Map(answer.groups.map((group) => [group.values.cluster, group.count]));
    state.perType.set(name, found);
    for (const [cluster, number] of found) state.counts.set(cluster, (state.counts.get(cluster) ?? 0) + number);
  } catch (error) {
    if (signal.aborted) throw error;
    if (error.status !== 404) state.problems.push(`${name} could not be counted: ${error.message}`);
  }
}

async function compareOne(state, type, signal) {
  const name = resourceName(type);
  try {
    const answer = await get(`/fleet/v1/outliers/${name}`, { limit: 20 }, { signal });
    for (const item of answer.items) state.outliers.push({ ...item, resource: name, kind: type.kind });
    if (answer.remaining) state.problems.push(`${name}: ${plural(answer.remaining, "more name")} differ`);
  } catch (error) {
    if (signal.aborted) throw error;
    if (error.status !== 404) state.problems.push(`${name} could not be compared: ${error.message}`);
  }
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
  const rest = rows.length - MOST_FINDINGS;
  const pending = state.isCompared || state.problems.length ? null : h("p", { class: "dim" }, "Still comparing …");
  const none = rows.length || pending ? null : h("p", {}, badge("same everywhere", "good"), " Every object that several clusters have is the same in all of them.");
  fill(
    place,
    h("ul", { class: "rows" }, rows.slice(0, MOST_FINDINGS)),
    rest > 0 ? h("p", { class: "dim" }, `and ${rest} more`) : null,
    state.problems.map((text) => h("p", { class: "dim" }, text)),
    pending,
    none,
  );
}

function finding(tone, word, text, more) {
  return h("li", { "data-row": true, tabindex: "-1" }, badge(word, tone), h("span", {}, text), more ? h("span", { class: "dim" }, more) : null);
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
function numbers({ clusters, perType, isCounted, only }) {
  if (!isCounted) return [];
  return [...perType].flatMap(([resource, found]) => {
    if (BY_NATURE.has(resource.split(".")[0])) return [];
    const groups = Map.groupBy(clusters.filter((one) => one.complete && !one.hub), (one) => found.get(one.name) ?? 0);
    const [[usual, members], ...others] = [...groups].sort((a, b) => b[1].length - a[1].length);
    const all = members.length + others.reduce((sum, [, list]) => sum + list.length, 0);
    if (!others.length || members.length * 2 <= all) return [];
    return others.filter(([, list]) => isMeant(only, list.map((one) => one.name))).map(([number, list]) => {
      const where = h("b", {}, names(list.map((one) => one.name)));
      const target = link("/search", { resource, cluster: list.map((one) => one.name).join(",") }, {}, `${count(number)} ${resource}`);
      return finding("plain", "number", [where, list.length === 1 ? " has " : " have ", target], `${members.length} of ${all} clusters have ${count(usual)}`);
    });
  });
}

function objects({ outliers, only }) {
  const meant = outliers.filter((item) => isMeant(only, item.variants.slice(1).flatMap((one) => one.clusters)));
  const sorted = [...meant].sort((a, b) => minority(a) - minority(b));
  return sorted.map((item) => {
    const [usual, ...others] = item.variants;
    const where = others.map((one) => names(one.clusters, 4)).join("; ");
    const target = objectAddress({ resource: item.resource, namespace: item.namespace, name: item.name, cluster: others[0]?.clusters[0] });
    const text = [h("a", { href: target }, `${item.kind} ${titleOf(item.namespace, item.name)}`), " differs in ", h("b", {}, where)];
    const fields = item.differences.slice(0, 2).map((one) => difference(one, usual, others[0]));
    const more = item.differences.length > 2 ? h("span", { class: "dim" }, ` and ${plural(item.differences.length - 2, "more field")}`) : null;
    return h("li", { "data-row": true, tabindex: "-1" }, badge("differs", "warn"), h("span", {}, text), h("span", { class: "fields" }, fields, more));
  });
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
  fill(place, table("Clusters of the fleet", ["Cluster", "State", "Last answer", "Version", { text: "Objects", class: "number" }, { text: "Types", class: "number" }, "Labels"], rows));
  if (focused) place.querySelector(`[data-cluster="${CSS.escape(focused)}"]`)?.focus();
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
    h("td", { title: one.platform }, one.serverVersion || "unknown"),
    h("td", { class: "number" }, link("/search", { resource: "pods", cluster: one.name }, { title: "its pods" }, isCounted ? count(objectCount) : `${count(objectCount)} …`)),
    h("td", { class: "number", title: "complete, of those that are watched" }, types),
    h("td", {}, labels),
  );
}
