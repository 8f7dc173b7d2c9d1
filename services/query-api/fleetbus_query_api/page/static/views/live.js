// Changes as they happen, with a bounded number of them in memory.
import { events, Problem } from "../api.js";
import { address, badge, fill, h, objectAddress, table } from "../dom.js";
import { clock, names, plural, shortPair, titleOf } from "../format.js";
import { commandOf, commands, filters, freshnessLine, shown } from "../parts.js";
import { differences, isAssigned } from "../trees.js";

const KEPT = 500;
/** Objects whose last state is kept, to tell what a change was; and their largest size. */
const REMEMBERED = 300;
const LARGEST = 64_000;
const STREAMS = 3;
const GONE = 410;
const FIELDS = [
  { name: "resource", label: "Types, up to 3", placeholder: "pods,deployments.apps", value: "pods,deployments.apps", wide: true },
  { name: "cluster", label: "Clusters", placeholder: "all" },
  { name: "namespace", label: "Namespace", placeholder: "all" },
  { name: "labelSelector", label: "Labels", placeholder: "app=web" },
  { name: "fieldSelector", label: "Fields", placeholder: "status.phase!=Running", wide: true },
];
const TONES = { added: "good", modified: "accent", deleted: "bad" };

export function openLive(main, context) {
  const { params, signal } = context;
  const asked = Object.fromEntries(FIELDS.map(({ name, value }) => [name, params.get(name) ?? value ?? ""]));
  const resources = asked.resource.split(",").map((one) => one.trim()).filter(Boolean).slice(0, STREAMS);
  const log = new EventLog(context);
  const states = h("div", {});
  fill(
    main,
    h("h1", { class: "unseen" }, "Live events"),
    filters(FIELDS, params, (values) => context.go(address("/live", values))),
    states,
    h("p", { class: "bar" }, log.button, log.status),
    log.element,
    commands(...resources.map((one) => commandOf(["fleetbus", "events", one], [["--follow", true], ["--cluster", asked.cluster.includes(",") ? "" : asked.cluster], ["-n", asked.namespace]]))),
  );
  for (const resource of resources) {
    const state = h("div", {}, h("p", { class: "freshness" }, h("b", {}, resource), " connecting …"));
    states.append(state);
    follow({ ...asked, resource }, signal, log, state);
  }
  return { toggle: () => log.toggle(), close: () => log.close() };
}

/** Follows one type, and goes on where it was after the connection broke. */
function follow(question, signal, log, state) {
  let since = "";
  const freshness = { freshness: {}, incomplete: [] };
  return shown(state, signal, async (signal, received) => {
    try {
      for await (const { id, event, data } of events(question, { signal, since })) {
        received(Infinity); // a stream may be quiet
        if (id) since = id;
        if (event === "freshness") {
          Object.assign(freshness.freshness, data.freshness);
          freshness.incomplete = data.incomplete;
          fill(state, freshnessLine(freshness, { about: question.resource }));
        } else if (event === "error") throw new Problem(data.status, data.detail);
        else if (event !== "bookmark") log.add(question.resource, event, data);
      }
    } catch (error) {
      if (error.status !== GONE) throw error;
      since = ""; // too far behind: some changes are not shown
      log.miss(question.resource);
    }
    throw new Problem(0, `${question.resource}: the stream of changes ended`);
  });
}

class EventLog {
  constructor(context) {
    this.context = context;
    this.rows = [];
    this.held = [];
    this.lost = 0;
    this.total = 0;
    this.isPaused = false;
    this.last = new Map();
    this.button = h("button", { type: "button", "aria-pressed": "false", title: "space" }, "Pause");
    this.button.addEventListener("click", () => this.toggle());
    this.status = h("span", { class: "status", role: "status" }, "Waiting for changes …");
    this.body = h("tbody", {});
    this.element = table("Live events", ["Time", "Change", "Type", "Cluster", "Object", "What"], [], { class: "log" });
    this.element.classList.add("live");
    this.element.querySelector("tbody").replaceWith(this.body);
    this.planned = 0;
  }

  close() {
    cancelAnimationFrame(this.planned);
    this.last.clear();
  }

  toggle() {
    this.isPaused = !this.isPaused;
    this.button.setAttribute("aria-pressed", String(this.isPaused));
    this.button.textContent = this.isPaused ? "Go on" : "Pause";
    if (!this.isPaused) {
      this.rows.unshift(...this.held.reverse());
      this.held = [];
    }
    this.#plan();
    return true;
  }

  add(resource, verb, data) {
    this.total += 1;
    const found = this.#describe(resource, verb, data);
    if (this.isPaused) {
      this.held.push(found);
      if (this.held.length > KEPT) this.lost += this.held.splice(0, this.held.length - KEPT).length;
    } else this.rows.unshift(found);
    this.rows.length = Math.min(this.rows.length, KEPT);
    this.#plan();
  }

  miss(resource) {
    this.rows.unshift({ time: new Date(), verb: "gap", resource, cluster: "", namespace: "", name: "", what: "Changes were missed here: the connection was too far behind." });
    this.#plan();
  }

  #describe(resource, verb, { cluster, object, ...known }) {
    const metadata = object?.metadata ?? known;
    const key = `${resource} ${cluster} ${metadata.namespace} ${metadata.name}`;
    const what = this.#what(key, verb, object);
    return { time: new Date(), verb, resource, cluster, namespace: metadata.namespace ?? "", name: metadata.name, what };
  }

  #what(key, verb, object) {
    const before = this.last.get(key);
    this.last.delete(key);
    if (object && verb !== "deleted" && JSON.stringify(object).length < LARGEST) {
      this.last.set(key, object);
      if (this.last.size > REMEMBERED) this.last.delete(this.last.keys().next().value);
    }
    if (verb !== "modified") return "";
    if (!before || !object) return object?.status?.phase ? `phase ${object.status.phase}` : "";
    const found = differences(before, object, isAssigned);
    const first = found.slice(0, 2).map((one) => `${one.path} ${shortPair(one.before, one.after, 30).join(" → ")}`);
    return found.length > 2 ? `${first.join("; ")}; and ${found.length - 2} more` : first.join("; ");
  }

  #plan() {
    cancelAnimationFrame(this.planned);
    this.planned = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const isFocused = this.body.contains(document.activeElement);
    if (!isFocused) this.body.replaceChildren(...this.rows.map((row) => (row.element ??= eventRow(row))));
    const parts = [`${plural(this.total, "change")} since ${clock(this.context.opened ?? (this.context.opened = new Date().toISOString()))}`];
    if (this.isPaused) parts.push(`held: ${plural(this.held.length, "change")}`);
    if (this.lost) parts.push(`${this.lost} not kept`);
    if (this.total > KEPT) parts.push(`the last ${KEPT} are shown`);
    if (isFocused) parts.push("the rows stand still while one has the focus");
    this.status.textContent = `${names(parts, 9)}.`;
  }
}

function eventRow({ time, verb, resource, cluster, namespace, name, what }) {
  const target = objectAddress({ resource, cluster, namespace, name }, { tab: verb === "deleted" ? "timeline" : "yaml" });
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("td", {}, clock(time.toISOString(), { millis: true })),
    h("td", {}, badge(verb, TONES[verb] ?? "warn")),
    h("td", { class: "dim" }, resource),
    h("td", {}, cluster),
    h("th", { scope: "row" }, name ? h("a", { href: target }, titleOf(namespace, name)) : ""),
    h("td", { class: "what", title: what }, what),
  );
}
