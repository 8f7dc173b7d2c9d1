// MultiClusterResources: their waves, and what became of them in each cluster.
import { get } from "../api.js";
import { badge, fill, h, link, objectAddress, section, table } from "../dom.js";
import { ago, names, plural, titleOf } from "../format.js";
import { commandOf, commands, emptyHint, freshnessLine, repeat, toneOf } from "../parts.js";

const RESOURCE = "multiclusterresources.fleetbus.dev";
const EVERY = 3;
const MOST = 1000;
const WORST_FIRST = ["Failed", "Conflict", "Unreachable", "Held", "Drifted", "Deleting", "Waiting", "Applied"];

export function openRollouts(main, context) {
  const { params, signal } = context;
  const [namespace, name] = [params.get("namespace") ?? "", params.get("name") ?? ""];
  const place = h("div", {}, h("p", { role: "status" }, "Asking …"));
  let hubs = [];
  fill(main, h("h1", { class: name ? "" : "unseen" }, name ? titleOf(namespace, name) : "Rollouts"), place);
  if (name) context.setTitle(titleOf(namespace, name));
  repeat(place, EVERY, signal, async (signal) => {
    if (!hubs.length) hubs = (await get("/fleet/v1/clusters", {}, { signal })).items.filter((one) => one.hub).map((one) => one.name);
    const question = { namespace, name, limit: MOST, cluster: hubs.join(",") };
    // Without a hub the question would be about all clusters, and a member's object is not the hub's.
    const answer = hubs.length ? await get(`/fleet/v1/resources/${RESOURCE}`, question, { signal }) : { items: [] };
    const items = answer.items.filter((item) => item.object);
    if (name) drawOne(place, items, answer);
    else drawAll(place, items, answer);
  });
  return null;
}

function drawAll(place, items, answer) {
  const rows = items.map((item) => resourceRow(item.object));
  fill(
    place,
    answer.freshness ? freshnessLine(answer) : null,
    rows.length ? table("MultiClusterResources", ["MultiClusterResource", "Ready", "State", "Rollout", "Waves", "Age"], rows) : noneYet(),
    commands(commandOf(["fleetbus", "get", "mcr"], [["-o", "wide"]])),
  );
}

function noneYet() {
  return emptyHint(
    "The hub has no MultiClusterResource that you may list.",
    "One describes objects and the clusters that get them: apply it to the hub with ",
    h("code", {}, "kubectl apply -f"),
    "; ",
    h("code", {}, "fleetbus plan -f"),
    " shows first what it would do.",
  );
}

function resourceRow({ metadata, status = {} }) {
  const { summary = {}, rollout } = status;
  const reason = summary.reason || (summary.ready ? "ready" : "not reported yet");
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("th", { scope: "row" }, link("/rollouts", { namespace: metadata.namespace, name: metadata.name }, {}, titleOf(metadata.namespace, metadata.name))),
    h("td", {}, summary.ready ?? ""),
    h("td", {}, badge(reason, toneOf(reason))),
    h("td", {}, rollout ? badge(rollout.phase, toneOf(rollout.phase)) : "all at once"),
    h("td", {}, rollout ? waveDots(rollout.waves ?? []) : ""),
    h("td", {}, ago(metadata.creationTimestamp).replace(" ago", "")),
  );
}

function waveDots(waves) {
  return waves.map((wave) => [badge(wave.name, toneOf(wave.phase), { title: `${wave.phase}: ${names(wave.clusters ?? [])}` }), " "]);
}

function drawOne(place, items, answer) {
  const [item] = items;
  if (!item) {
    fill(place, emptyHint("The hub has no such MultiClusterResource, or you may not list it.", link("/rollouts", {}, {}, "All MultiClusterResources")), answer.freshness ? freshnessLine(answer) : null);
    return;
  }
  const { metadata, status = {} } = item.object;
  const name = titleOf(metadata.namespace, metadata.name);
  const target = objectAddress({ resource: RESOURCE, namespace: metadata.namespace, name: metadata.name, cluster: item.cluster });
  const clusters = [...(status.clusters ?? [])].sort((a, b) => WORST_FIRST.indexOf(a.state) - WORST_FIRST.indexOf(b.state) || a.name.localeCompare(b.name));
  fill(
    place,
    freshnessLine(answer),
    h("p", {}, h("a", { href: `${target}&tab=yaml` }, "YAML"), " · ", h("a", { href: `${target}&tab=relations` }, "what it has in which cluster"), " · ", h("a", { href: `${target}&tab=timeline` }, "timeline")),
    heldBox(status.held, name),
    status.rollout ? waves(status.rollout) : null,
    conditions(status.conditions ?? []),
    section("Clusters", {}, table("Status by cluster", ["Cluster", "State", "Health", "Revision", "Message"], clusters.map(clusterRow))),
    status.rollout ? commands(commandOf(["fleetbus", "rollout", "status", name])) : commands(commandOf(["fleetbus", "get", "mcr", metadata.name], [["-n", metadata.namespace], ["-o", "yaml"]])),
  );
}

function heldBox(held, name) {
  if (!held) return null;
  return h("div", { class: "problem" }, `${plural(held.objects ?? 0, "deletion")} in ${names(held.clusters ?? [])} wait for you: ${held.reason}.`, commands(commandOf(["fleetbus", "fuse", "confirm", name])));
}

function waves(rollout) {
  const list = (rollout.waves ?? []).map((wave, at) =>
    h(
      "li",
      { class: `wave ${toneOf(wave.phase)}` },
      h("b", {}, `${at + 1}. ${wave.name}`),
      " ",
      badge(wave.phase, toneOf(wave.phase)),
      h("div", {}, `${wave.ready ?? 0} of ${plural((wave.clusters ?? []).length, "cluster")} ready`),
      h("div", { class: "dim" }, names(wave.clusters ?? [], 8)),
      (wave.gates ?? []).map((gate) => h("div", {}, "gate ", gate.name, " ", badge(gate.state, toneOf(gate.state)), gate.message ? h("span", { class: "dim" }, ` ${gate.message}`) : null)),
      isSaid(wave) ? null : h("div", { class: "dim" }, wave.message),
      wave.openedAt ? h("div", { class: "dim" }, `opened ${ago(wave.openedAt)}`) : null,
    ),
  );
  const head = [badge(rollout.phase, toneOf(rollout.phase)), ` revision ${rollout.revision}`, rollout.previous ? `, after ${rollout.previous}` : "", rollout.message ? `: ${rollout.message}` : ""];
  return section("Rollout", {}, h("p", {}, head), h("ol", { class: "waves" }, list));
}

/** Whether the message of a wave is empty, or that of one of its gates. */
function isSaid({ message, gates }) {
  return !message || (gates ?? []).some((gate) => gate.message && message.includes(gate.message));
}

function conditions(list) {
  if (!list.length) return null;
  const rows = list.map((one) =>
    h("tr", {}, h("th", { scope: "row" }, one.type), h("td", {}, one.status), h("td", {}, one.reason ?? ""), h("td", {}, one.message ?? ""), h("td", {}, ago(one.lastTransitionTime))),
  );
  return section("Conditions", {}, table("Conditions", ["Type", "Status", "Reason", "Message", "Since"], rows));
}

function clusterRow(one) {
  const unhealthy = one.unhealthy ? `${one.unhealthy.object}: ${one.unhealthy.message || one.unhealthy.reason}` : "";
  return h(
    "tr",
    { "data-row": true, tabindex: "-1" },
    h("th", { scope: "row" }, one.name),
    h("td", {}, badge(one.state, toneOf(one.state)), one.reason && one.reason !== one.state ? h("span", { class: "dim" }, ` ${one.reason}`) : null),
    h("td", {}, one.health ? badge(one.health, toneOf(one.health)) : ""),
    h("td", {}, one.revision ?? ""),
    h("td", {}, one.message || unhealthy, one.lastCorrection ? h("div", {}, badge("drift corrected", "accent"), ` ${one.lastCorrection}`) : null),
  );
}
