// Compares an object between clusters: a row for each field that differs, then two side by side.
import { badge, fill, h, table } from "../dom.js";
import { names, plural, short } from "../format.js";
import { commandOf, commands } from "../parts.js";
import { reasonOf } from "../intent.js";
import { compareLines, flatten, isAssigned, isStatus, toYaml, without } from "../trees.js";

const MOST_FIELDS = 200;
const AROUND = 3;

/** Groups clusters in which an object is the same, but for what a cluster fills in itself. */
export function groupVariants(items, { withAll }) {
  const groups = new Map();
  for (const item of items) {
    const fields = new Map([...flatten(item.object ?? {})].filter(([path]) => withAll || !isByNature(path)));
    const form = JSON.stringify([...fields].sort());
    if (!groups.has(form)) groups.set(form, { fields, items: [] });
    groups.get(form).items.push(item);
  }
  return [...groups.values()].sort((a, b) => b.items.length - a.items.length);
}

export function drawCompare(body, context, { asked, answer, chosen }) {
  const { params } = context;
  const withAll = params.get("all") === "1";
  const variants = groupVariants(answer.items, { withAll });
  const command = commandOf(["fleetbus", "describe", asked.resource, asked.name], [["-n", asked.namespace]]);
  fill(
    body,
    h("label", { class: "inline" }, allBox(context, withAll), " also the status, and what each cluster fills in itself"),
    variants.length > 1 ? fieldTable(variants, intended(answer, asked)) : h("p", {}, badge("same", "good"), ` in ${plural(answer.items.length, "cluster")}, but for what each cluster fills in itself.`),
    answer.items.length > 1 ? sideBySide(context, answer.items, variants, chosen, withAll) : null,
    commands(command),
  );
}

/** Tells of a path why it differs, if the MultiClusterResource of the object intends that. */
function intended({ intent, clusters, items, resource }, asked) {
  if (!intent) return () => "";
  const having = new Set(items.map((item) => item.cluster));
  const members = clusters.filter((one) => having.has(one.name));
  return (path) => reasonOf(intent, { ...asked, kind: resource.kind }, path, members);
}

function isByNature(path) {
  return isAssigned(path) || isStatus(path);
}

function allBox(context, withAll) {
  const box = h("input", { type: "checkbox", name: "all", checked: withAll });
  box.addEventListener("change", () => context.go(context.with({ all: box.checked }), { replace: true }));
  return box;
}

function fieldTable(variants, why) {
  const paths = new Set(variants.flatMap((variant) => [...variant.fields.keys()]));
  const differing = [...paths].filter((path) => new Set(variants.map((variant) => JSON.stringify(variant.fields.get(path)))).size > 1);
  const heads = ["Field", ...variants.map((variant, at) => ({ text: [badge(letter(at), at === 0 ? "good" : "warn"), " ", names(variant.items.map((item) => item.cluster), 3)] }))];
  const reasons = new Map(differing.map((path) => [path, why(path)]));
  const sorted = [...differing].sort((a, b) => Boolean(reasons.get(a)) - Boolean(reasons.get(b)));
  const rows = sorted.slice(0, MOST_FIELDS).map((path) => fieldRow(path, variants, reasons.get(path)));
  const many = [...reasons.values()].filter(Boolean).length;
  const more = differing.length - rows.length;
  return [
    h("p", { class: "status" }, `${plural(differing.length, "field")} ${differing.length === 1 ? "differs" : "differ"} in ${variants.length} forms of the object${many ? `; ${many === differing.length ? "all of them" : many} as its MultiClusterResource intends` : ""}.`),
    table("Fields that differ between clusters", heads, rows, { class: "fields-table stacked" }),
    more > 0 ? h("p", { class: "dim" }, `and ${more} more`) : null,
  ];
}

function fieldRow(path, variants, reason) {
  const usual = JSON.stringify(variants[0].fields.get(path));
  const cells = variants.map((variant, at) => {
    const label = `${letter(at)} ${names(variant.items.map((item) => item.cluster), 3)}`;
    const value = variant.fields.get(path);
    const isOther = JSON.stringify(value) !== usual;
    return h("td", { "data-label": label, class: `${isOther && !reason ? "other" : ""} ${value === undefined ? "absent" : ""}`, title: value === undefined ? null : short(value, 2000) }, short(value));
  });
  return h("tr", { "data-row": true, tabindex: "-1" }, h("th", { scope: "row" }, h("code", {}, path), reason ? [" ", badge("intended", "good", { title: `${reason} of its MultiClusterResource` })] : null), cells);
}

function letter(at) {
  return String.fromCharCode(65 + (at % 26));
}

function sideBySide(context, items, variants, chosen, withAll) {
  const right = items.find((item) => item.cluster === context.params.get("with")) ?? other(items, variants, chosen);
  const left = items.find((item) => item.cluster === chosen) ?? items[0];
  const rows = compareLines(linesOf(left, withAll), linesOf(right, withAll));
  const choice = (value, apply, label) => {
    const options = items.map((item) => h("option", { value: item.cluster, selected: item.cluster === value }, item.cluster));
    const select = h("select", { name: label, "aria-label": label }, options);
    select.addEventListener("change", () => context.go(apply(select.value), { replace: true }));
    return select;
  };
  return h(
    "section",
    { "aria-label": "Side by side" },
    h(
      "div",
      { class: "sides" },
      choice(left.cluster, (cluster) => context.with({ cluster, with: right.cluster }), "left"),
      h("span", { "aria-hidden": "true" }, "↔"),
      choice(right.cluster, (cluster) => context.with({ cluster: left.cluster, with: cluster }), "right"),
    ),
    h("div", { class: "scroll diff", tabindex: "0", role: "region", "aria-label": `${left.cluster} and ${right.cluster}, side by side` }, diffTable(rows)),
  );
}

/** A cluster whose form differs from that of the chosen one, if there is any. */
function other(items, variants, chosen) {
  const differing = variants.find((variant) => !variant.items.some((item) => item.cluster === chosen));
  return differing?.items[0] ?? items.find((item) => item.cluster !== chosen) ?? items[0];
}

function linesOf(item, withAll) {
  const object = item.object ?? {};
  return toYaml(withAll ? object : without(object, isByNature));
}

function diffTable(rows) {
  const shown = rows.map((_, at) => rows.slice(Math.max(0, at - AROUND), at + AROUND + 1).some((row) => row.mark === "changed"));
  const isSame = rows.every((row) => row.mark === "same");
  const found = [];
  let skipped = 0;
  rows.forEach((row, at) => {
    if (!isSame && !shown[at]) {
      skipped += 1;
      return;
    }
    if (skipped) found.push(h("tr", { class: "skipped" }, h("td", { colspan: "2" }, `${plural(skipped, "equal line")}`)));
    skipped = 0;
    found.push(diffRow(row));
  });
  if (skipped) found.push(h("tr", { class: "skipped" }, h("td", { colspan: "2" }, plural(skipped, "equal line"))));
  return h("table", {}, h("caption", { class: "unseen" }, "Lines side by side"), h("tbody", {}, found));
}

function diffRow({ mark, left, right }) {
  const side = (text, tag) => h("td", { class: mark === "changed" ? (text === null ? "gap" : tag) : "" }, text === null ? "" : mark === "changed" ? h(tag, {}, text) : text);
  return h("tr", { class: mark }, side(left, "del"), side(right, "ins"));
}
