// One object in all clusters: what differs, its YAML, owners and children, Events, timeline.
import { apiPath, get } from "../api.js";
import { badge, fill, h, link } from "../dom.js";
import { ago, clock, names, plural, titleOf } from "../format.js";
import { markOf, readIntents, statusIn } from "../intent.js";
import { commandOf, commands, emptyHint, freshnessLine, shown, toneOf, windowLine } from "../parts.js";
import { toYaml } from "../trees.js";
import { drawCompare, groupVariants } from "./compare.js";
import { drawEvents } from "./events.js";
import { openTimeline, timeControl } from "./timeline.js";
import { drawTree } from "./tree.js";

const TABS = { compare: "Compare", yaml: "YAML", tree: "Tree", events: "Events", timeline: "Timeline" };
const TITLES = { tree: "Owners and children, with their health", events: "Kubernetes Events", timeline: "What happened to it" };
const MOST = 1000;

export function openObject(main, context) {
  const { params, signal } = context;
  const place = h("div", {}, h("p", { role: "status" }, "Asking …"));
  const head = h("div");
  fill(main, head, place);
  const asked = { resource: params.get("resource") ?? "", namespace: params.get("namespace") ?? "", name: params.get("name") ?? "" };
  context.setTitle(titleOf(asked.namespace, asked.name));
  shown(place, signal, async (signal) => {
    const path = apiPath("resources", asked.resource);
    const question = { namespace: asked.namespace, name: asked.name, limit: MOST, asOf: params.get("asOf") };
    const answer = await get(path, question, { signal }).catch((error) => {
      if (signal.aborted || error.isPassing || !question.asOf) throw error;
      // The moment stays at hand: it is what has to be changed.
      fill(head, h("h1", {}, titleOf(asked.namespace, asked.name)), timeControl(context, asked, params.get("cluster")));
      throw error;
    });
    fill(head);
    // Without a namespace the API lists those of all: only an object without one is meant then.
    const items = answer.items.filter((item) => asked.namespace || !namespaceOf(item));
    const { intent, clusters } = await readIntent(items, signal);
    draw(place, context, asked, { ...answer, items, intent, clusters });
  });
  return null;
}

/** The MultiClusterResource that the marks of the objects name, and the clusters with their labels. */
async function readIntent(items, signal) {
  const mark = items.map((item) => markOf(item.object)).find(Boolean);
  if (!mark) return { intent: null, clusters: [] };
  const clusters = (await get("/fleet/v1/clusters", {}, { signal })).items;
  const intents = await readIntents(clusters, { signal, namespace: mark.namespace, name: mark.name });
  return { intent: intents.get(mark.uid) ?? null, clusters };
}

function namespaceOf(item) {
  return item.object ? item.object.metadata.namespace : item.namespace;
}

function draw(place, context, asked, answer) {
  const { params } = context;
  const present = answer.items.map((item) => item.cluster);
  const absent = Object.keys(answer.freshness).filter((name) => !present.includes(name));
  const chosen = params.get("cluster") || present[0] || "";
  const tab = Object.hasOwn(TABS, params.get("tab")) ? params.get("tab") : params.get("tab") === "relations" ? "tree" : present.length > 1 ? "compare" : "yaml";
  const variants = groupVariants(answer.items, { withAll: false });
  const body = h("div", { role: "tabpanel", "aria-label": TABS[tab] });
  fill(
    place,
    h("h1", {}, h("span", { class: "dim" }, answer.resource.kind, " "), titleOf(asked.namespace, asked.name)),
    freshnessLine(answer),
    answer.window ? windowLine(answer.window) : null,
    timeControl(context, asked, chosen),
    clusterChips(context, variants, absent, chosen, answer),
    managedBy(answer, chosen),
    undetermined(answer),
    h("nav", { class: "tabs", "aria-label": "Parts" }, Object.entries(TABS).map(([key, text]) => h("a", { href: context.with({ tab: key }), title: TITLES[key], "aria-current": key === tab ? "page" : null }, text))),
    body,
  );
  if (!present.length && tab !== "timeline") {
    const when = params.get("asOf") ? ` at ${clock(params.get("asOf"))}` : "";
    const tries = [h("a", { href: context.with({ tab: "timeline" }) }, "its timeline"), ", ", link("/search", { where: asked.name }, {}, "objects of this name in any type"), " or ", link("/search", { resource: asked.resource }, {}, `all ${asked.resource}`)];
    fill(body, emptyHint(`No cluster has this object${when}.`, "Try ", tries, "."));
    return;
  }
  const item = answer.items.find((one) => one.cluster === chosen) ?? answer.items[0];
  if (tab === "compare") drawCompare(body, context, { asked, variants, answer, chosen });
  else if (tab === "yaml") drawYaml(body, context, asked, item);
  else if (tab === "tree") drawTree(body, context, asked, item, answer.resource);
  else if (tab === "events") drawEvents(body, context, asked, item);
  else openTimeline(body, context, asked, chosen);
}

function clusterChips(context, variants, absent, chosen, answer) {
  const rows = variants.map((variant, at) =>
    h(
      "li",
      {},
      badge(variants.length === 1 ? "same" : String.fromCharCode(65 + (at % 26)), at === 0 ? "good" : "warn", { title: at === 0 ? "the form of most clusters" : "another form" }),
      " ",
      variant.items.map((item) => [chip(context, item.cluster, chosen, answer.incomplete), " "]),
    ),
  );
  const isPlaced = (name) => answer.intent && statusIn(answer.intent, name);
  const none = (list, word, tone, title) => {
    if (!list.length) return;
    const chips = list.map((name) => [h("span", { class: "chip absent", title: answer.freshness[name].reason || title }, name), " "]);
    rows.push(h("li", {}, badge(word, tone), " ", chips));
  };
  none(absent.filter(isPlaced), "missing", "warn", "its MultiClusterResource is placed there, but the object is not");
  none(absent.filter((name) => !isPlaced(name)), answer.intent ? "not placed there" : "not there", "plain", "it has no such object");
  return h("ul", { class: "variants", "aria-label": "Clusters, by the form of the object" }, rows);
}

function chip(context, cluster, chosen, incomplete) {
  const isOld = incomplete.includes(cluster);
  return h(
    "a",
    { class: `chip${isOld ? " old" : ""}`, href: context.with({ cluster }), "aria-current": cluster === chosen ? "true" : null, title: isOld ? "may be outdated" : null },
    cluster,
    isOld ? " ?" : "",
  );
}

/** Whose object it is, how the distributor sees it in the chosen cluster, and what it took back last. */
function managedBy({ intent }, chosen) {
  if (!intent) return null;
  const { namespace, name } = intent.metadata;
  const entry = statusIn(intent, chosen);
  return h(
    "p",
    { class: "managed" },
    "Placed by MultiClusterResource ",
    link("/rollouts", { namespace, name }, {}, titleOf(namespace, name)),
    entry ? [`, in ${chosen} `, badge(entry.state, toneOf(entry.state)), entry.message ? ` ${entry.message}` : ""] : null,
    entry?.lastCorrection ? h("span", { class: "correction" }, badge("drift corrected", "accent"), ` ${entry.lastCorrection}`) : null,
  );
}

function undetermined(answer) {
  const found = answer.undetermined ?? [];
  if (!found.length) return null;
  return h("p", {}, badge("not known", "warn"), ` ${names(found.map((one) => `${one.cluster}: ${one.reason}`), 5)}`);
}

function drawYaml(body, context, asked, item) {
  const lines = item.object ? toYaml(item.object) : [`# no body is known: ${item.degraded}`];
  const options = [["-n", asked.namespace], ["--cluster", item.cluster], ["--as-of", context.params.get("asOf")]];
  fill(
    body,
    h("p", { class: "dim" }, `${item.cluster}, ${plural(lines.length, "line")}; created ${ago(item.object?.metadata.creationTimestamp) || "at an unknown time"}`),
    h("pre", { class: "yaml", tabindex: "0", "aria-label": "YAML" }, lines.map((line) => [yamlLine(line), "\n"])),
    commands(commandOf(["fleetbus", "get", asked.resource, asked.name], [...options, ["-o", "yaml"]])),
  );
}

function yamlLine(line) {
  const found = /^(\s*(?:- )*)((?:"(?:[^"\\]|\\.)*"|[^\s:"][^:"]*):)(.*)$/.exec(line);
  if (!found) return line;
  return [found[1], h("span", { class: "key" }, found[2]), found[3]];
}
