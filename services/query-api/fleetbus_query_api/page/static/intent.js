// Which differences between clusters a MultiClusterResource intends.
import { get } from "./api.js";

export const RESOURCE = "multiclusterresources.fleetbus.dev";
const KIND = "MultiClusterResource";
const MOST = 1000;
const EXPRESSION = /\$\{[^{}]*\}/;
/** `$${` stands for itself; what is left depends on the cluster. */
const BY_CLUSTER = /(?<!\$)\$\{cluster\.[^{}]*\}/;
const UNDER_WAY = new Set(["Progressing", "Paused"]);

/** The MultiClusterResources of the hub that the user may list, by UID; a mark of a member proves nothing. */
export async function readIntents(clusters, { signal, namespace = "", name = "" } = {}) {
  const hubs = clusters.filter((one) => one.hub).map((one) => one.name);
  const byUid = new Map();
  if (!hubs.length) return byUid;
  try {
    const question = { cluster: hubs.join(","), namespace, name, limit: MOST };
    const answer = await get(`/fleet/v1/resources/${RESOURCE}`, question, { signal });
    for (const { object } of answer.items) if (object?.metadata?.uid) byUid.set(object.metadata.uid, object);
  } catch (error) {
    if (error.status !== 403 && error.status !== 404) throw error; // nothing is marked as intended then
  }
  return byUid;
}

/** The owner in another cluster that the mark of an object names; null without one. */
export function markOf(object) {
  try {
    const mark = JSON.parse(object?.metadata?.annotations?.["fleetbus.dev/owner"] ?? "null");
    return mark?.kind === KIND && typeof mark.uid === "string" ? mark : null;
  } catch {
    return null;
  }
}

/** The entry of a cluster in the status of a MultiClusterResource. */
export function statusIn(resource, cluster) {
  return (resource.status?.clusters ?? []).find((one) => one.name === cluster);
}

/**
 * Why a field differs, if a MultiClusterResource says that it shall; empty if it does not say so.
 * @param {object} resource the MultiClusterResource.
 * @param {{kind: string, namespace: string, name: string}} object
 * @param {string} path of the field, as field selectors write it.
 * @param {{name: string, labels: Record<string, string>}[]} clusters that have the object.
 */
export function reasonOf(resource, object, path, clusters) {
  const states = clusters.map((cluster) => statusIn(resource, cluster.name));
  const steps = stepsOf(path);
  const templates = templatesOf(resource.spec ?? {}).filter((template) => isTemplateOf(template, object));
  if (!templates.length) return "";
  if (states.every((one) => one?.state === "Applied")) {
    if (templates.some((template) => dependsOnCluster(template, steps))) return "template";
    if (isCustomized(resource.spec.customize, object, steps, clusters)) return "customize";
  }
  return isBetweenWaves(resource.status?.rollout, clusters) ? "rollout" : "";
}

/** Whether a rollout goes on that has reached some of the clusters and not the others. */
function isBetweenWaves(rollout, clusters) {
  if (!UNDER_WAY.has(rollout?.phase)) return false;
  const phaseOf = ({ name }) => (rollout.waves ?? []).find((wave) => wave.clusters?.includes(name))?.phase;
  const reached = new Set(clusters.map((cluster) => phaseOf(cluster) !== "Waiting"));
  return reached.size > 1;
}

function templatesOf({ template, templates }) {
  return [template, ...(Array.isArray(templates) ? templates : [])].filter((one) => one && typeof one === "object");
}

function isTemplateOf(template, { kind, namespace, name }) {
  const metadata = template.metadata ?? {};
  return template.kind === kind && isRendered(metadata.name, name) && (!namespace || isRendered(metadata.namespace ?? "default", namespace));
}

/** Whether a string of a template may become this one. */
function isRendered(text, rendered) {
  const parts = String(text ?? "").split(EXPRESSION);
  if (parts.length === 1) return parts[0] === rendered;
  return rendered.startsWith(parts[0]) && rendered.endsWith(parts.at(-1)) && rendered.length >= parts.join("").length;
}

/** The steps of a path such as `a.b[0]['c.d']`; below labels and annotations all is one key. */
export function stepsOf(path) {
  const strings = /^(metadata)\.(labels|annotations)\.(.+)$/.exec(path);
  if (strings) return strings.slice(1);
  const steps = [];
  for (const [, quoted, index, key] of String(path).matchAll(/\['([^']*)'\]|\[(\d+)\]|\.?((?:\\.|[^.[\]])+)/g))
    steps.push(quoted ?? index ?? key.replaceAll("\\.", "."));
  return steps;
}

/** Whether the value at a path, or a part of it, has an expression that depends on the cluster. */
function dependsOnCluster(template, steps) {
  return hasExpression(steps.reduce((value, step) => (isMap(value) && Object.hasOwn(value, step) ? value[step] : undefined), template));
}

function isMap(value) {
  return value !== null && typeof value === "object";
}

function hasExpression(value) {
  if (isMap(value)) return Object.values(value).some(hasExpression);
  return typeof value === "string" && BY_CLUSTER.test(value);
}

/** Whether an entry for some of the clusters changes the field, or a part of it, or what it is in. */
function isCustomized(customize, object, steps, clusters) {
  return (customize?.clusters ?? []).some((entry) => {
    if (!isTarget(entry.target, object) || !clusters.some((cluster) => isFor(entry, cluster))) return false;
    const touched = (entry.action ?? []).filter((one) => one.op !== "test").map((one) => pointerSteps(one.path));
    return touched.some((pointer) => isSameBranch(pointer, steps)) || isMerged(entry.merge, steps);
  });
}

function isTarget(target, object) {
  return ["kind", "namespace", "name"].every((field) => !target?.[field] || target[field] === object[field]);
}

function isFor({ name, clusterSelector }, cluster) {
  return clusterSelector ? matches(clusterSelector, cluster.labels ?? {}) : name === cluster.name;
}

function matches({ matchLabels, matchExpressions }, labels) {
  const isMet = ({ key, operator, values = [] }) =>
    ({ In: values.includes(labels[key]), NotIn: !values.includes(labels[key]), Exists: key in labels, DoesNotExist: !(key in labels) })[operator];
  return Object.entries(matchLabels ?? {}).every(([key, value]) => labels[key] === value) && (matchExpressions ?? []).every(isMet);
}

function pointerSteps(pointer) {
  return String(pointer ?? "").split("/").slice(1).map((one) => one.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** Whether one of two paths begins with the other; `-` is the end of a list. */
function isSameBranch(pointer, steps) {
  const most = Math.min(pointer.length, steps.length);
  return pointer.slice(0, most).every((step, at) => step === steps[at] || step === "-");
}

function isMerged(merge, steps) {
  let value = merge;
  for (const step of steps) {
    if (!isMap(value) || Array.isArray(value)) return value !== undefined; // a list is replaced as a whole
    if (!Object.hasOwn(value, step)) return false;
    value = value[step];
  }
  return value !== undefined;
}
