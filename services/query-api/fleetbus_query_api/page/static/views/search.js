// All objects of a type in all clusters, in the columns of kubectl; or where a name is.
import { apiPath, get, readTable, types } from "../api.js";
import { address, badge, fill, h, link, objectAddress, section, table } from "../dom.js";
import { clock, count, names, plural, resourceName, titleOf } from "../format.js";
import { VirtualList } from "../list.js";
import { commandOf, commands, curlOf, emptyHint, filters, freshnessLine, shown, toneOf, windowLine } from "../parts.js";
import { suggestion } from "../quick.js";

const PAGE = 1000;
const NAMES = ["cluster", "namespace", "name", "labelSelector", "fieldSelector", "sort"];
const FIELDS = [
  { name: "resource", label: "Type", placeholder: "pods", list: "search-types" },
  { name: "cluster", label: "Clusters", placeholder: "all" },
  { name: "namespace", label: "Namespace", placeholder: "all" },
  { name: "name", label: "Name", placeholder: "any" },
  { name: "labelSelector", label: "Labels", placeholder: "app=web,tier!=db", wide: true },
  { name: "fieldSelector", label: "Fields", placeholder: "status.phase!=Running", wide: true },
  { name: "sort", label: "Sort by", placeholder: "-metadata.creationTimestamp" },
  { name: "asOf", label: "As of", placeholder: "now, 10m, 2026-01-31T12:00:00Z" },
  { name: "wide", label: "Wide", check: true },
];
const SORTS = { Cluster: "cluster", Namespace: "metadata.namespace", Name: "metadata.name", Age: "-metadata.creationTimestamp" };

export function openSearch(main, context) {
  const { params, signal } = context;
  const known = h("datalist", { id: "search-types" });
  types({ signal }).then((answer) => known.append(...answer.map(suggestion)), () => undefined);
  const form = filters(FIELDS, params, (values) => context.go(address("/search", values)));
  fill(main, h("h1", { class: "unseen" }, "Search"), form, known);
  if (params.get("where")) return openWhere(main, context);
  const resource = params.get("resource");
  if (!resource) {
    main.append(h("p", { class: "hint" }, "Choose a type, or press / and type a name: it is looked for in all types and clusters."), overview(signal));
    return null;
  }
  context.setTitle(resource);
  return openTable(main, context, resource);
}

function command({ params }, resource) {
  return commandOf(
    ["fleetbus", "get", resource, params.get("name") ?? ""],
    [
      ["-n", params.get("namespace")],
      ["-l", params.get("labelSelector")],
      ["--field-selector", params.get("fieldSelector")],
      ["--sort-by", params.get("sort")],
      ...(params.get("cluster") ?? "").split(",").map((name) => ["--cluster", name]),
      ["-o", params.get("wide") ? "wide" : ""],
      ["--as-of", params.get("asOf")],
    ],
  );
}

function asked(params) {
  return Object.fromEntries(NAMES.map((name) => [name, params.get(name) ?? ""]));
}

function openTable(main, context, resource) {
  const { params, signal } = context;
  const status = h("p", { class: "status", role: "status" });
  const fresh = h("div");
  const trouble = h("div", {}, h("p", { class: "status" }, "Asking …"));
  const pages = { token: "", isWhole: false, isBusy: false, total: null, asOf: params.get("asOf") ?? "" };
  let named = { name: 0, isNamespaced: false };
  const list = new VirtualList({
    label: `${resource} in all clusters`,
    addressOf: (cells) =>
      objectAddress({ resource, cluster: cells[0], namespace: named.isNamespaced ? cells[1] : "", name: cells[named.name] }, { asOf: pages.asOf }),
    toneOf: (cell, column) => (/^(status|ready|phase|state)$/i.test(column.name) ? `tone ${toneOf(cell)}` : ""),
    onNearEnd: () => next(),
  });
  const body = h("div", { class: "fill" }, list.element, h("p", { id: "list-help", class: "unseen" }, "j and k move, Enter opens the row."));
  body.hidden = true;
  main.append(fresh, status, trouble, body, commands(command(context, resource)));

  async function next() {
    if (pages.isBusy || pages.isWhole || signal.aborted) return;
    pages.isBusy = true;
    await shown(trouble, signal, async (signal) => {
      const isFirst = !pages.token;
      const question = { ...asked(params), wide: params.get("wide") ? "true" : "", limit: PAGE, continue: pages.token, asOf: pages.asOf };
      const onHead = (head) => isFirst && begin(head);
      const { rows, end } = await readTable(apiPath("resources", resource), question, { signal, onHead });
      pages.token = end.continue;
      pages.isWhole = list.isWhole = !end.hasMore;
      list.add(rows);
      report(end);
      body.hidden = !list.rows.length;
      if (body.hidden) fill(trouble, nothing(context, resource));
    });
    pages.isBusy = false;
  }

  function begin(head) {
    named = { name: head.columns.findIndex((column) => column.format === "name"), isNamespaced: head.resource.namespaced };
    pages.asOf = head.asOf ?? ""; // all pages are of the same moment, also one that was `10m`
    fill(trouble);
    body.hidden = false;
    fill(fresh, freshnessLine(head), windowLine(head.window));
    list.begin(head.columns, (column) => headOf(column, params, context));
  }

  function report(end) {
    const held = count(list.rows.length);
    const total = pages.isWhole ? list.rows.length : pages.total;
    const when = pages.asOf ? ` as of ${clock(pages.asOf)}` : "";
    const text = pages.isWhole ? `${plural(list.rows.length, "object")}${when}.` : `${held}${total === null ? "" : ` of ${count(total)}`} objects${when}; more come as you scroll.`;
    const undecided = Object.values(end.undecided).reduce((sum, one) => sum + one, 0);
    fill(status, text, undecided ? [" ", badge(`${plural(undecided, "object")} without a body may match`, "warn")] : null,
      end.undetermined?.length ? [" ", badge(`of some it is not known whether they existed: ${names(end.undetermined.map((one) => `${one.cluster} ${titleOf(one.namespace, one.name)}`), 3)}`, "warn")] : null,
      end.degraded.length ? [" ", badge(`of ${plural(end.degraded.length, "object")} only the name is known`, "warn")] : null);
    if (!pages.isWhole && pages.total === null && !pages.asOf) countAll(end);
  }

  async function countAll(end) {
    pages.total = NaN;
    const { sort, ...selected } = asked(params);
    try {
      const answer = await get(apiPath("counts", resource), { ...selected, limit: 1 }, { signal });
      list.total = pages.total = answer.total;
      report(end);
    } catch {
      pages.total = null; // the rows say what there is
    }
  }

  next();
  return { list, close: () => list.close() };
}

function nothing({ params }, resource) {
  const name = params.get("name");
  const all = link("/search", { resource }, {}, `all ${resource}`);
  return emptyHint("Nothing matches.", "Try ", all, name ? [", or ", link("/search", { where: name }, {}, `${name} in all types`)] : ", or fewer filters", ".");
}

function headOf(column, params, context) {
  const sort = SORTS[column.name];
  if (!sort) return column.name;
  const isThis = params.get("sort") === sort;
  const other = sort.startsWith("-") ? sort.slice(1) : `-${sort}`;
  const isOther = params.get("sort") === other;
  const mark = isThis ? " ↓" : isOther ? " ↑" : "";
  const target = context.with({ sort: isThis ? other : sort });
  return h("a", { href: target, title: `Sort by ${sort.replace("-", "")}` }, column.name, mark);
}

function openWhere(main, { params, signal }) {
  const name = params.get("where");
  const namespace = params.get("namespace") ?? "";
  const place = h("div", {}, h("p", { role: "status" }, `Looking for ${name} in all types and clusters …`));
  main.append(place, commands(curlOf(address("/fleet/v1/where", { name, namespace }))));
  shown(place, signal, async (signal) => {
    const answer = await get("/fleet/v1/where", { name, namespace }, { signal });
    const groups = Map.groupBy(answer.items, (item) => `${resourceName(item.resource)} ${item.namespace}`);
    const rows = [...groups.values()].map((items) => whereRow(items));
    fill(
      place,
      freshnessLine(answer),
      h("p", { class: "status", role: "status" }, `${plural(answer.items.length, "object")} of this name${answer.remaining ? `, and ${answer.remaining} more` : ""}.`),
      rows.length ? table(`Objects named ${name}`, ["Kind", "Object", "Clusters"], rows) : emptyHint("No object has exactly this name.", "Names are not searched by parts. Choose ", link("/search", {}, {}, "a type"), " to see all of its objects, or see in ", link("/changes", { since: "24h" }, {}, "the changes of the last day"), " whether it was deleted."),
    );
  });
  return null;
}

function whereRow(items) {
  const [{ resource, namespace, name }] = items;
  const target = (cluster) => objectAddress({ resource: resourceName(resource), namespace, name, cluster });
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("td", {}, resource.kind),
    h("th", { scope: "row" }, h("a", { href: target("") }, titleOf(namespace, name))),
    h("td", {}, items.map((item) => [h("a", { class: "chip", href: target(item.cluster) }, item.cluster), " "])),
  );
}

function overview(signal) {
  const place = h("div", {}, "Asking …");
  shown(place, signal, async (signal) => {
    const known = await types({ signal });
    const groups = Map.groupBy(known, (type) => (type.group === "core" ? "core" : type.group));
    fill(
      place,
      section(
        "Types of the fleet",
        {},
        [...groups].map(([group, members]) =>
          h("p", { class: "types" }, h("b", {}, group), " ", members.map((type) => [h("a", { class: "chip", href: address("/search", { resource: resourceName(type) }), title: type.shortNames.join(", ") }, type.kind), " "])),
        ),
      ),
      commands("fleetbus api-resources"),
    );
  });
  return place;
}
