// Objects as YAML, as lists of fields, and what differs between them.

const PLAIN = /^[A-Za-z_./](?:[\w./@+-]|:(?=[\w./@+-]))*(?: [\w./@+-]+)*$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"]);

/** Renders a value as the lines of a YAML document. */
export function toYaml(value) {
  const lines = [];
  render(value, "", lines);
  return lines;
}

function render(value, indent, lines) {
  if (Array.isArray(value)) {
    for (const item of value) renderItem(item, indent, lines);
    return;
  }
  for (const [key, item] of Object.entries(value)) {
    const head = `${indent}${scalar(key)}:`;
    if (isFilled(item)) {
      lines.push(head);
      render(item, Array.isArray(item) ? indent : `${indent}  `, lines);
    } else if (typeof item === "string" && item.includes("\n")) {
      block(head, item, `${indent}  `, lines);
    } else lines.push(`${head} ${scalar(item)}`);
  }
}

function renderItem(item, indent, lines) {
  if (!isFilled(item)) {
    lines.push(`${indent}- ${scalar(item)}`);
    return;
  }
  const from = lines.length;
  render(item, `${indent}  `, lines);
  lines[from] = `${indent}- ${lines[from].slice(indent.length + 2)}`;
}

function block(head, text, indent, lines) {
  const keep = text.endsWith("\n") ? "" : "-";
  lines.push(`${head} |${keep}`);
  for (const line of text.replace(/\n$/, "").split("\n")) lines.push(line ? indent + line : "");
}

function isFilled(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return PLAIN.test(value) && !WORDS.has(value.toLowerCase()) ? value : JSON.stringify(value);
}

const DEEPEST = 60;

/** The path of a part, as field selectors write it; below labels and annotations all is one key. */
function below(path, key, isList) {
  if (isList) return `${path}[${key}]`;
  if (/[./[\]']/.test(key) && !/^metadata\.(labels|annotations)$/.test(path)) return `${path}['${key}']`;
  return path ? `${path}.${key}` : key;
}

/** The fields of an object: path to value. */
export function flatten(value, path = "", found = new Map(), depth = 0) {
  if (!isFilled(value) || depth > DEEPEST) {
    if (path) found.set(path, value);
    return found;
  }
  const isList = Array.isArray(value);
  for (const [key, item] of Object.entries(value)) {
    flatten(item, below(path, key, isList), found, depth + 1);
  }
  return found;
}

/** An object without the fields that are left out, nor what is empty without them. */
export function without(value, isLeftOut, path = "") {
  if (!isFilled(value)) return value;
  const isList = Array.isArray(value);
  const kept = [];
  for (const [key, item] of Object.entries(value)) {
    const step = below(path, key, isList);
    if (isLeftOut(step)) continue;
    const rest = without(item, isLeftOut, step);
    if (isFilled(rest) || !isFilled(item)) kept.push([key, rest]);
  }
  return isList ? kept.map(([, item]) => item) : Object.fromEntries(kept);
}

const ASSIGNED = [
  /^(apiVersion|kind)$/,
  /^metadata\.(uid|resourceVersion|creationTimestamp|generation|selfLink|managedFields|deletionTimestamp)/,
  /^metadata\.(generateName|ownerReferences|finalizers|namespace|name)/,
  /^metadata\.annotations\.(fleetbus\.dev\/|deployment\.kubernetes\.io\/|kubectl\.kubernetes\.io\/last-applied)/,
  /^metadata\.labels\.(fleetbus\.dev\/|pod-template-hash|controller-revision-hash)/,
  /^spec\.(clusterIP|clusterIPs|nodeName|ipFamilies|ipFamilyPolicy|volumeName)/,
  /^spec\.ports\[\d+\]\.nodePort/,
];

/** Whether a cluster fills in a field itself, so that it differs by nature. */
export function isAssigned(path) {
  return ASSIGNED.some((pattern) => pattern.test(path));
}

/** Whether a field is part of the status. */
export function isStatus(path) {
  return path.startsWith("status.") || path === "status" || path.startsWith("status[");
}

/** The fields that differ between two objects: `{path, before, after}`. */
export function differences(before, after, isLeftOut = () => false) {
  const [old, now] = [flatten(before), flatten(after)];
  const found = [];
  for (const path of new Set([...old.keys(), ...now.keys()])) {
    if (isLeftOut(path)) continue;
    const [a, b] = [old.get(path), now.get(path)];
    if (JSON.stringify(a) !== JSON.stringify(b)) found.push({ path, before: a, after: b });
  }
  return found;
}

const MOST_CELLS = 4_000_000;

/**
 * Compares two lists of lines by their longest common subsequence.
 * @returns {{mark: "same"|"changed", left: string|null, right: string|null}[]} rows side by side.
 */
export function compareLines(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let [endLeft, endRight] = [left.length, right.length];
  while (endLeft > start && endRight > start && left[endLeft - 1] === right[endRight - 1]) {
    endLeft -= 1;
    endRight -= 1;
  }
  const same = (line) => ({ mark: "same", left: line, right: line });
  return [
    ...left.slice(0, start).map(same),
    ...middle(left.slice(start, endLeft), right.slice(start, endRight)),
    ...left.slice(endLeft).map(same),
  ];
}

function middle(left, right) {
  const wide = right.length + 1;
  if ((left.length + 1) * wide > MOST_CELLS) return pair(left, right);
  const longest = new Uint32Array((left.length + 1) * wide);
  for (let i = left.length - 1; i >= 0; i -= 1)
    for (let j = right.length - 1; j >= 0; j -= 1)
      longest[i * wide + j] =
        left[i] === right[j]
          ? longest[(i + 1) * wide + j + 1] + 1
          : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
  const rows = [];
  let [i, j] = [0, 0];
  let [lost, added] = [[], []];
  const flush = () => {
    rows.push(...pair(lost, added));
    [lost, added] = [[], []];
  };
  while (i < left.length && j < right.length) {
    if (left[i] === right[j]) {
      flush();
      rows.push({ mark: "same", left: left[i], right: right[j] });
      i += 1;
      j += 1;
    } else if (longest[(i + 1) * wide + j] >= longest[i * wide + j + 1]) lost.push(left[i++]);
    else added.push(right[j++]);
  }
  lost.push(...left.slice(i));
  added.push(...right.slice(j));
  flush();
  return rows;
}

function pair(left, right) {
  return Array.from({ length: Math.max(left.length, right.length) }, (_, at) => ({
    mark: "changed",
    left: left[at] ?? null,
    right: right[at] ?? null,
  }));
}
