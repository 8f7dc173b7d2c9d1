// The owners and children of an object as a tree, with the health that the columns of kubectl show.
import { apiPath, each, get, objectPath, readTable } from "../api.js";
import { badge, fill, h, objectAddress } from "../dom.js";
import { resourceName, titleOf } from "../format.js";
import { commands, curlOf, freshnessLine, shown, toneOf } from "../parts.js";

const DEPTH = 5;
const MOST_ROWS = 1000;
/** Columns that say how an object is, by their names in kubectl. */
const STATE = /^(status|state|phase|reason|health)$/i;
const COUNTS = /^(ready|completions)$/i;

export function drawTree(body, context, asked, item, resource) {
  const place = h("div", {}, "Asking …");
  const path = (what) => objectPath(what, item.cluster, asked);
  fill(body, place, commands(curlOf(path("owners")), curlOf(`${path("children")}?depth=${DEPTH}`)));
  shown(place, context.signal, async (signal) => {
    const [owners, children] = await Promise.all([get(path("owners"), {}, { signal }), get(path("children"), { depth: DEPTH }, { signal })]);
    const self = { ...asked, cluster: item.cluster, uid: item.object?.metadata.uid ?? "", resource, isSelf: true };
    const nodes = [...owners.items.filter((one) => one.found), self, ...children.items];
    const states = new Map();
    const draw = () => fill(place, treeOf(owners.items, self, children.items, states), emptyText(owners, children), more(owners, children), freshnessLine(children));
    draw();
    await readStates(nodes, states, signal);
    draw();
  });
}

function emptyText(owners, children) {
  if (owners.items.length || children.items.length) return null;
  return h("p", { class: "dim" }, "Nothing owns it, and it owns nothing that you may list: no object names it in ownerReferences or in the mark of fleetbus.");
}

function more(owners, children) {
  return owners.hasMore || children.hasMore ? h("p", { class: "dim" }, "There are more than are shown.") : null;
}

/** A nested list: the farthest owner outside, the object within its nearest one, its children below. */
function treeOf(owners, self, children, states) {
  const byOwner = Map.groupBy(children, (one) => one.ownerUid);
  const below = (uid) => {
    const list = byOwner.get(uid) ?? [];
    byOwner.delete(uid); // a circle of owners ends here
    return list.length ? h("ul", {}, list.map((one) => h("li", {}, nodeLine(one, self, states), below(one.uid)))) : null;
  };
  let inner = h("ul", { class: "tree" }, h("li", {}, nodeLine(self, self, states), below(self.uid)));
  const levels = Map.groupBy(owners, (one) => one.depth);
  for (const depth of [...levels.keys()].sort((a, b) => a - b)) {
    const lines = levels.get(depth).map((one) => h("li", {}, nodeLine(one, self, states)));
    lines.at(-1).append(inner);
    inner = h("ul", { class: "tree" }, lines);
  }
  return inner;
}

function nodeLine(one, self, states) {
  const title = titleOf(one.namespace === self.namespace ? "" : one.namespace, one.name);
  const kind = one.resource?.kind ?? one.kind;
  const where = one.cluster === self.cluster ? null : [" ", h("span", { class: "chip" }, one.cluster)];
  const state = one.found === false ? badge("not found", "warn", { title: "gone, or you may not get it" }) : stateOf(states.get(keyOf(one)));
  const name = one.isSelf
    ? h("b", { "aria-current": "true" }, title)
    : one.resource
      ? h("a", { href: objectAddress({ ...one, resource: resourceName(one.resource) }, { tab: "tree" }) }, title)
      : title;
  return h("div", { "data-row": true, tabindex: "-1" }, h("span", { class: "dim" }, kind, " "), name, where, " ", state);
}

function stateOf(words) {
  return (words ?? []).map(({ text, tone }) => [badge(text, tone), " "]);
}

function keyOf({ cluster, resource, namespace, name }) {
  return JSON.stringify([cluster, resource && resourceName(resource), namespace, name]);
}

/** Reads the columns of all nodes: a request for each type in each cluster and namespace. */
async function readStates(nodes, states, signal) {
  const groups = Map.groupBy(nodes.filter((one) => one.resource), (one) => JSON.stringify([one.cluster, resourceName(one.resource), one.namespace]));
  await each([...groups.values()], async (members) => {
    const [{ cluster, namespace, resource, name }] = members;
    const question = { cluster, namespace, name: members.length === 1 ? name : "", limit: MOST_ROWS };
    let columns = [];
    try {
      const { rows } = await readTable(apiPath("resources", resourceName(resource)), question, { signal, onHead: (head) => (columns = head.columns) });
      const at = columns.findIndex((column) => column.format === "name");
      for (const row of rows.map((text) => JSON.parse(text))) states.set(keyOf({ cluster, resource, namespace, name: row[at] }), wordsOf(columns, row));
    } catch (error) {
      if (signal.aborted || error.isPassing) throw error; // what may not be listed has no state here
    }
  });
}

/** The words of a row that say how the object is, with their tones. */
export function wordsOf(columns, cells) {
  const value = (name) => cells[columns.findIndex((column) => column.name.toLowerCase() === name)];
  const words = [];
  columns.forEach((column, at) => {
    const cell = cells[at] ?? "";
    if (!cell || cell.startsWith("<")) return;
    if (STATE.test(column.name)) words.push({ text: cell, tone: toneOf(cell) });
    else if (COUNTS.test(column.name) && /^\d+\/\d+$/.test(cell)) words.push({ text: cell, tone: toneOfCount(...cell.split("/"), value("status")) });
  });
  const [desired, ready] = [value("desired"), value("ready")];
  if (/^\d+$/.test(desired ?? "") && /^\d+$/.test(ready ?? "")) words.push({ text: `${ready}/${desired}`, tone: toneOfCount(ready, desired) });
  return words;
}

function toneOfCount(ready, all, status = "") {
  if (ready === all) return all === "0" ? "plain" : "good";
  return /^completed$/i.test(status) ? "plain" : "warn";
}
