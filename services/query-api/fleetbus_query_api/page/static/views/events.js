// The Kubernetes Events of one object in one cluster, the newest first.
import { apiPath, get, types } from "../api.js";
import { badge, fill, h, table } from "../dom.js";
import { ago, clock, plural, resourceName, titleOf } from "../format.js";
import { commandOf, commands, emptyHint, freshnessLine, shown } from "../parts.js";

const MOST = 500;
const NOT_FOUND = 404;
/** By group: where an Event names its object. */
const REFERENCES = { core: "involvedObject", "events.k8s.io": "regarding" };

export function drawEvents(body, context, asked, item) {
  const place = h("div", {}, "Asking …");
  const uid = item.object?.metadata?.uid ?? "";
  const namespace = asked.namespace || "default";
  const selector = (field) => (uid ? `${field}.uid=${uid}` : `${field}.name=${asked.name}`);
  const command = commandOf(["fleetbus", "get", "events"], [["-n", namespace], ["--cluster", item.cluster], ["--field-selector", selector("involvedObject")]]);
  fill(body, place, commands(command));
  shown(place, context.signal, async (signal) => {
    const type = (await types({ signal })).find((one) => one.plural === "events" && one.group in REFERENCES);
    const question = { namespace, cluster: item.cluster, fieldSelector: selector(REFERENCES[type?.group ?? "core"]), limit: MOST };
    const answer = await get(apiPath("resources", type ? resourceName(type) : "events"), question, { signal }).catch((error) => {
      if (error.status !== NOT_FOUND) throw error;
      fill(place, emptyHint("No Events are known.", error.message)); // it says how to have them watched
    });
    if (!answer) return;
    const events = answer.items.map((one) => one.object).filter(Boolean).sort((a, b) => Date.parse(lastOf(b)) - Date.parse(lastOf(a)));
    fill(
      place,
      freshnessLine(answer),
      h("p", { class: "status", role: "status" }, `${plural(events.length, "event")} of ${titleOf(asked.namespace, asked.name)} in ${item.cluster}.`),
      events.length ? table("Events", ["Type", "Reason", "Last seen", { text: "Count", class: "number" }, "From", "Message"], events.map(eventRow)) : nothing(),
    );
  });
}

function nothing() {
  return emptyHint("No Events of this object are known.", "API servers keep Events for an hour. Those of a workload's pods are at the pods, which the tab Tree leads to.");
}

/** When an Event was seen last, in either form of the API. */
function lastOf(event) {
  return event.series?.lastObservedTime ?? event.lastTimestamp ?? event.deprecatedLastTimestamp ?? event.eventTime ?? event.metadata?.creationTimestamp ?? "";
}

function eventRow(event) {
  const last = lastOf(event);
  const count = event.series?.count ?? event.count ?? event.deprecatedCount ?? 1;
  const from = event.reportingComponent || event.source?.component || event.reportingController || "";
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("td", {}, badge(event.type ?? "", event.type === "Warning" ? "warn" : "plain")),
    h("th", { scope: "row" }, event.reason ?? ""),
    h("td", { title: clock(last) }, ago(last)),
    h("td", { class: "number" }, count),
    h("td", {}, from),
    h("td", {}, event.message ?? event.note ?? ""),
  );
}
