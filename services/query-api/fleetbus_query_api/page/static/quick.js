// The field at the top: `pods -n shop -l app=web`, `deploy/web`, or a name in the whole fleet.
import { types } from "./api.js";
import { address, h } from "./dom.js";
import { resourceName } from "./format.js";

const PATIENT_MS = 3_000;
const OPTIONS = {
  "-n": "namespace",
  "--namespace": "namespace",
  "-l": "labelSelector",
  "--selector": "labelSelector",
  "--field-selector": "fieldSelector",
  "--sort-by": "sort",
  "--cluster": "cluster",
  "-c": "cluster",
};

/** The field, with the types of the fleet as suggestions. */
export function quickSearch(go) {
  const known = h("datalist", { id: "known-types" });
  const input = h("input", {
    id: "quick",
    name: "quick",
    type: "search",
    placeholder: "pods -l app=web, deploy/web, or a name  ( / )",
    "aria-label": "Search: a type with options as for fleetbus get, TYPE/NAME, or a name",
    list: "known-types",
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener("focus", async () => {
    if (known.childElementCount) return;
    const found = await types({}).catch(() => []);
    known.append(...found.map(suggestion));
  });
  const form = h("form", { class: "quick", role: "search" }, input, known);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // Without an answer the word is taken for a name; the view that opens says what is wrong.
    const fleetTypes = await types({ signal: AbortSignal.timeout(PATIENT_MS) }).catch(() => []);
    const target = parse(input.value, fleetTypes);
    if (target) {
      input.value = "";
      input.blur();
      go(target);
    }
  });
  return form;
}

/** A type as a suggestion: its name, and what else it is called. */
export function suggestion(type) {
  const other = [type.kind, ...type.shortNames].join(", ");
  return h("option", { value: resourceName(type), label: other });
}

/** Finds a type by any of its names. */
export function findType(text, known) {
  const wanted = text.toLowerCase();
  return known.find(
    (type) =>
      [type.plural, type.singular, type.kind.toLowerCase(), ...type.shortNames].includes(wanted) ||
      resourceName(type) === wanted ||
      type.versions.some((version) => wanted === `${type.group === "core" ? "" : `${type.group}/`}${version}/${type.plural}`),
  );
}

/** The address for what was entered; empty for nothing. */
export function parse(text, known) {
  const words = text.trim().replace(/^(fleetbus|kubectl)\s+get\s+/, "").split(/\s+/);
  if (!words[0]) return "";
  const params = {};
  const rest = [];
  while (words.length) {
    const word = words.shift();
    const [name, joined] = word.startsWith("--") ? word.split(/=(.*)/s) : [word];
    if (name in OPTIONS) params[OPTIONS[name]] = joined ?? words.shift() ?? "";
    else if (!word.startsWith("-")) rest.push(word);
  }
  if (params.sort) params.sort = params.sort.replace(/^\./, "");
  const [first = "", second = ""] = rest;
  const at = first.lastIndexOf("/");
  const pair = at > 0 ? findType(first.slice(0, at), known) : null;
  const type = findType(first, known);
  if (type) return address("/search", { resource: resourceName(type), name: second, ...params });
  if (pair) return address("/search", { resource: resourceName(pair), name: first.slice(at + 1), ...params });
  return address("/search", { where: first, namespace: params.namespace });
}
