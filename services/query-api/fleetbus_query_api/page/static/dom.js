// Builds elements. Whatever comes from a cluster is text: nothing here parses HTML.

/**
 * Makes an element.
 * @param {string} tag its name.
 * @param {Record<string, unknown>} props attributes; `onclick` and the like are listeners.
 * @param {...unknown} children nodes, strings, numbers, lists of them; null and false are left out.
 */
export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Replaces the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A link within the page. */
export function link(path, params, props, ...children) {
  return h("a", { href: address(path, params), ...props }, ...children);
}

/** The address of a view; empty parameters are left out. */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined && value !== false)
      query.set(name, value === true ? "1" : String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** The address of one object. */
export function objectAddress(object, more = {}) {
  const { resource, namespace, name, cluster } = object;
  return address("/object", { resource, namespace, name, cluster, ...more });
}

/** A table with a caption for those who do not see it; on a narrow screen each row becomes a block. */
export function table(caption, heads, rows, props = { class: "stacked" }) {
  const labels = heads.map((one) => (typeof one === "string" ? one : typeof one.text === "string" ? one.text : ""));
  for (const row of rows) [...row.children].forEach((cell, at) => (cell.dataset.label ??= labels[at]));
  const head = heads.map((one) =>
    typeof one === "string"
      ? h("th", { scope: "col" }, one)
      : h("th", { scope: "col", class: one.class }, one.text),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { role: "table", ...props },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows),
    ),
  );
}

/** A section with a heading. */
export function section(title, props, ...children) {
  return h("section", { class: "panel", "aria-label": title, ...props }, h("h2", {}, title), ...children);
}

/** A word with the colour of its meaning; the word says it, too. */
export function badge(text, tone = "plain", props = {}) {
  return h("span", { class: `badge ${tone}`, ...props }, text);
}

/** Says something to screen readers. */
export function announce(text) {
  const place = document.getElementById("announce");
  if (place && place.textContent !== text) place.textContent = text;
}
