// One object in all clusters: what differs, its YAML, its owners and children, its timeline.
import { apiPath, get, objectPath } from "../api.js";
import { badge, fill, h, table } from "../dom.js";
import { ago, clock, names, plural, resourceName, titleOf } from "../format.js";
import { commandOf, commands, curlOf, freshnessLine, problemBox, shown, windowLine } from "../parts.js";
import { toYaml } from "../trees.js";
import { drawCompare, groupVariants } from "./compare.js";
import { openTimeline, timeControl } from "./timeline.js";

const TABS = { compare: "Compare", yaml: "YAML", relations: "Owners and children", timeline: "Timeline" };
const MOST = 1000;

export function openObject(main, context) {
  const { params, signal } = context;
  const place = h("div", {}, h("p", { role: "status" }, "Asking …"));
  fill(main, place);
  const asked = { resource: params.get("resource") ?? "", namespace: params.get("namespace") ?? "", name: params.get("name") ?? "" };
  context.setTitle(titleOf(asked.namespace, asked.name));
  shown(place, signal, async () => {
    const path = apiPath("resources", asked.resource);
    const question = { namespace: asked.namespace, name: asked.name, limit: MOST, asOf: params.get("asOf") };
    const answer = await get(path, question, { signal }).catch((error) => {
      if (signal.aborted || !question.asOf) throw error;
      // The moment stays at hand: it is what has to be changed.
      fill(place, h("h1", {}, titleOf(asked.namespace, asked.name)), timeControl(context, asked, params.get("cluster")), problemBox(error));
    });
    if (!answer) return;
    // Without a namespace the API lists those of all: only an object without one is meant then.
    const items = answer.items.filter((item) => asked.namespace || !namespaceOf(item));
    draw(place, context, asked, { ...answer, items });
  });
  return null;
}

function namespaceOf(item) {
  return item.object ? item.object.metadata.namespace : item.namespace;
}

function draw(place, context, asked, answer) {
  const { params } = context;
  const present = answer.items.map((item) => item.cluster);
  const absent = Object.keys(answer.freshness).filter((name) => !present.includes(name));
  const chosen = params.get("cluster") || present[0] || "";
  const tab = Object.hasOwn(TABS, params.get("tab")) ? params.get("tab") : present.length > 1 ? "compare" : "yaml";
  const variants = groupVariants(answer.items, { withAll: false });
  const body = h("div", { role: "tabpanel", "aria-label": TABS[tab] });
  fill(
    place,
    h("h1", {}, h("span", { class: "dim" }, answer.resource.kind, " "), titleOf(asked.namespace, asked.name)),
    freshnessLine(answer),
    answer.window ? windowLine(answer.window) : null,
    timeControl(context, asked, chosen),
    clusterChips(context, variants, absent, chosen, answer),
    undetermined(answer),
    h("nav", { class: "tabs", "aria-label": "Parts" }, Object.entries(TABS).map(([key, text]) => h("a", { href: context.with({ tab: key }), "aria-current": key === tab ? "page" : null }, text))),
    body,
  );
  if (!present.length && tab !== "timeline") {
    const when = params.get("asOf") ? ` at ${clock(params.get("asOf"))}` : "";
    fill(body, h("p", { class: "hint" }, `No cluster has this object${when}. Its timeline may tell what happened to it.`));
    return;
  }
  const item = answer.items.find((one) => one.cluster === chosen) ?? answer.items[0];
  if (tab === "compare") drawCompare(body, context, { asked, variants, answer, chosen });
  else if (tab === "yaml") drawYaml(body, context, asked, item);
  else if (tab === "relations") drawRelations(body, context, asked, item);
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
  const none = absent.map((name) => h("span", { class: "chip absent", title: answer.freshness[name].reason || "it has no such object" }, name));
  if (none.length) rows.push(h("li", {}, badge("not there", "plain"), " ", none.map((one) => [one, " "])));
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

function drawRelations(body, context, asked, item) {
  const { signal } = context;
  const owners = h("div", {}, "Asking …");
  const children = h("div", {}, "Asking …");
  const path = (what) => objectPath(what, item.cluster, asked);
  fill(body, h("h2", {}, `Owners in ${item.cluster}`), owners, h("h2", {}, "Children, also in other clusters"), children, commands(curlOf(path("owners")), curlOf(`${path("children")}?depth=3`)));
  shown(owners, signal, async () => {
    const answer = await get(path("owners"), {}, { signal });
    fill(owners, answer.items.length ? table("Owners", HEADS, answer.items.map(ownerRow)) : h("p", { class: "dim" }, "Nothing owns it."), freshnessLine(answer));
  });
  shown(children, signal, async () => {
    const answer = await get(path("children"), { depth: 3 }, { signal });
    const more = answer.hasMore ? h("p", { class: "dim" }, "There are more.") : null;
    fill(children, answer.items.length ? table("Children", HEADS, answer.items.map(childRow)) : h("p", { class: "dim" }, "It owns nothing."), more, freshnessLine(answer));
  });
}

const HEADS = ["Cluster", "Kind", "Object", "Depth"];

function ownerRow(one) {
  const title = titleOf(one.namespace, one.name);
  const target = one.found && one.resource ? h("a", { href: addressOf(one, resourceName(one.resource)) }, title) : [title, " ", badge("not found", "warn")];
  return h("tr", { "data-row": true, tabindex: "-1" }, h("td", {}, one.cluster), h("td", {}, one.kind), h("th", { scope: "row" }, target), h("td", {}, one.depth));
}

function childRow(one) {
  const target = h("a", { href: addressOf(one, resourceName(one.resource)) }, titleOf(one.namespace, one.name));
  return h("tr", { "data-row": true, tabindex: "-1" }, h("td", {}, one.cluster), h("td", {}, one.resource.kind), h("th", { scope: "row" }, target), h("td", {}, one.depth));
}

function addressOf(one, resource) {
  return `/object?${new URLSearchParams({ resource, namespace: one.namespace, name: one.name, cluster: one.cluster })}`;
}
