// What changed in the fleet, grouped by change: where it happened, and where not.
import { get } from "../api.js";
import { address, badge, fill, h, link, objectAddress } from "../dom.js";
import { clock, names, plural, resourceName, titleOf } from "../format.js";
import { commandOf, commands, emptyHint, filters, freshnessLine, shown, toneOf, windowLine } from "../parts.js";
import { fieldChange } from "./timeline.js";

const FIELDS = [
  { name: "since", label: "Since", placeholder: "10m", value: "10m" },
  { name: "until", label: "Until", placeholder: "now" },
  { name: "cluster", label: "Clusters", placeholder: "all" },
  { name: "resource", label: "Type", placeholder: "all" },
  { name: "namespace", label: "Namespace", placeholder: "all" },
  { name: "owned", label: "Also owned", check: true },
];
const TONES = { added: "good", deleted: "bad", modified: "accent" };
const SHOWN_FIELDS = 6;
/** As many as an answer names. */
const MOST_UNDETERMINED = 100;

export function openChanges(main, context) {
  const { params, signal } = context;
  const asked = Object.fromEntries(FIELDS.map(({ name, value }) => [name, params.get(name) ?? value ?? ""]));
  asked.owned = asked.owned ? "true" : "";
  const form = filters(FIELDS, params, (values) => context.go(address("/changes", values)));
  const presets = h(
    "p",
    { class: "presets" },
    ["1m", "10m", "1h", "6h", "24h"].map((since) => h("a", { class: "button", href: context.with({ since, until: "" }), "aria-current": since === asked.since ? "true" : null }, since)),
  );
  const place = h("div", {}, h("p", { role: "status" }, "Reading the log of changes …"));
  const command = commandOf(
    ["fleetbus", "diff", asked.resource],
    [["--since", asked.since], ["--until", asked.until], ...asked.cluster.split(",").map((name) => ["--cluster", name]), ["-n", asked.namespace], ["--owned", Boolean(asked.owned)]],
  );
  fill(main, h("h1", { class: "unseen" }, "Changes"), form, presets, place, commands(command));
  shown(place, signal, async (signal) => {
    const { answer, notice } = await ask(asked, signal);
    const groups = [...answer.groups].sort(byInterest);
    fill(
      place,
      notice,
      windowLine(answer.window),
      answer.freshness ? freshnessLine(answer) : null,
      h("p", { class: "status", role: "status" }, `${plural(answer.changedObjects, "object")} changed between ${clock(answer.from)} and ${clock(answer.to)}, in ${plural(answer.groupCount ?? groups.length, "way")}.`),
      answer.ownedObjects ? h("p", { class: "dim" }, `${plural(answer.ownedObjects, "more object")} with an owner changed, such as the pods of a ReplicaSet. `, h("a", { href: context.with({ owned: true }) }, "Show them")) : null,
      undetermined(answer.undetermined ?? []),
      answer.truncated ? h("p", {}, badge("not all", "warn"), " There were more changes than one answer can contain: narrow the query.") : null,
      distribution(answer),
      groups.length || answer.ownedObjects || answer.distribution?.length ? h("ul", { class: "groups" }, groups.map((group) => groupItem(group, asked))) : nothing(context),
    );
  });
  return null;
}

/** What the distributor reported in the period: corrections, failed rollouts, undos. */
function distribution({ distribution: reports = [], distributionCount = 0 }) {
  if (!reports.length) return null;
  const more = distributionCount - reports.length;
  return [
    h("h2", {}, "What the distributor did"),
    h("ul", { class: "groups" }, reports.map(reportItem)),
    more > 0 ? h("p", { class: "dim" }, `and ${plural(more, "earlier report")}`) : null,
  ];
}

function reportItem(report) {
  const period = report.count > 1 ? `${clock(report.first)} to ${clock(report.last)}, ${report.count} times` : clock(report.last);
  const about = [report.revision ? ` revision ${report.revision}` : "", report.wave ? ` wave ${report.wave}` : "", report.clusters.length ? ` in ${names(report.clusters, 8)}` : ""];
  const objects = report.objects.map((one) => h("li", {}, h("code", {}, one.object, one.field), one.manager ? ` by ${one.manager}` : ""));
  return h(
    "li",
    { "data-row": true, tabindex: "-1" },
    h("p", {}, badge(report.event, toneOf(report.event)), " by MultiClusterResource ", ownerLink(report.owner), about, " ", h("span", { class: "dim" }, period)),
    report.message || report.reason ? h("p", {}, report.message || report.reason) : null,
    objects.length ? h("ul", { class: "changes" }, objects) : null,
    report.moreObjects ? h("p", { class: "dim" }, `and ${plural(report.moreObjects, "more object")}`) : null,
  );
}

function ownerLink({ namespace, name }) {
  return link("/rollouts", { namespace, name }, {}, titleOf(namespace, name));
}

function nothing(context) {
  return emptyHint("Nothing changed in this period.", "Try ", h("a", { href: context.with({ since: "24h", until: "" }) }, "the last 24 hours"), ", fewer filters, or ", link("/live", {}, {}, "changes as they happen"), ".");
}

const GONE = 410;

/** Asks for the changes; of a time before the window, for those since the window begins. */
async function ask(asked, signal) {
  try {
    return { answer: await get("/fleet/v1/changes", asked, { signal }), notice: null };
  } catch (error) {
    if (error.status !== GONE || asked.until) throw error;
    const { window } = await get("/fleet/v1/history", {}, { signal });
    const answer = await get("/fleet/v1/changes", { ...asked, since: window.from }, { signal });
    const text = ` This is all since ${clock(window.from)}. What was asked for cannot be answered: ${error.message}`;
    return { answer, notice: h("p", { role: "alert" }, badge("not since then", "warn"), text) };
  }
}

/** Deletions first, then changes that reached a part of the clusters only, then the wide ones. */
function byInterest(a, b) {
  return interest(b) - interest(a) || b.clusters.length - a.clusters.length;
}

function interest(group) {
  if (group.change === "deleted") return 3;
  return group.others.length ? (group.change === "modified" ? 2 : 1) : 0;
}

function undetermined(list) {
  if (!list.length) return null;
  const latest = list.map((one) => one.knownFrom).sort().at(-1);
  const rows = list.map((one) => h("li", {}, `${one.cluster} ${one.resource} ${titleOf(one.namespace, one.name)}: ${one.reason}`));
  return h("details", { class: "freshness" }, h("summary", {}, badge("not known", "warn"), ` whether ${list.length >= MOST_UNDETERMINED ? `${MOST_UNDETERMINED} objects or more` : plural(list.length, "object")} changed; all is known from ${clock(latest)} on`), h("ul", {}, rows));
}

function groupItem(found, asked) {
  const group = { ...found, resource: resourceName(found.resource), kind: found.resource.kind };
  const all = group.clusters.length + group.others.length;
  const target = objectAddress({ ...group, cluster: group.clusters[0] }, { tab: group.change === "deleted" ? "timeline" : "compare" });
  const where = group.others.length
    ? [`in ${group.clusters.length} of ${plural(all, "cluster")}: `, h("b", {}, names(group.clusters, 8)), h("span", { class: "dim" }, `; not in ${names(group.others, 8)}`)]
    : [`in ${all === 1 ? "" : "all "}${plural(all, "cluster")}: `, h("b", {}, names(group.clusters, 8))];
  const fields = group.differences.slice(0, SHOWN_FIELDS).map(fieldChange);
  const more = group.differences.length - fields.length + (group.moreDifferences ?? 0);
  return h(
    "li",
    { "data-row": true, tabindex: "-1" },
    h("p", {}, badge(group.change, TONES[group.change] ?? "plain"), " ", h("span", { class: "dim" }, group.kind, " "), h("a", { href: target }, titleOf(group.namespace, group.name)), group.writtenBy ? [h("span", { class: "dim" }, " of MultiClusterResource "), ownerLink(group.writtenBy)] : null),
    h("p", { class: "where" }, where),
    fields.length ? h("ul", { class: "changes" }, fields) : null,
    more > 0 ? h("p", { class: "dim" }, `and ${plural(more, "more field")}`) : null,
    group.change === "deleted" ? commands(restore(group, asked)) : null,
  );
}

function restore(group, asked) {
  return commandOf(
    ["fleetbus", "restore", group.resource, group.name],
    [["--since", asked.since], ["-n", group.namespace], ...group.clusters.slice(0, 20).map((name) => ["--cluster", name])],
  );
}
