// What the keyboard does.
import { fill, h } from "./dom.js";

const HELP = [
  ["/", "search for a type, or for a name in the whole fleet"],
  ["j, k", "next row, previous row (also the arrows)"],
  ["Enter", "open the row"],
  ["Esc", "leave a field, close a dialog, or go back"],
  ["space", "hold or go on with live events"],
  ["?", "this list"],
];
const TIMEOUT = 1200;

let asked = 0;

/** Begins to listen; `current` answers the view that is open. */
export function listenToKeys({ go, tabs, current }) {
  const dialog = helpDialog(tabs);
  document.body.append(dialog);
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target;
    const isTyping = target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
    if (document.querySelector("dialog[open]")) return;
    if (isTyping) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (handle(event, { go, tabs, current, dialog })) event.preventDefault();
  });
}

function handle(event, { go, tabs, current, dialog }) {
  if (asked && Date.now() - asked < TIMEOUT) {
    asked = 0;
    const found = tabs.find(([, view]) => view.key === event.key);
    if (found) {
      go(found[0]);
      return true;
    }
  }
  switch (event.key) {
    case "/":
      document.querySelector("#quick")?.focus();
      return true;
    case "g":
      asked = Date.now();
      return true;
    case "?":
      dialog.showModal();
      return true;
    case "Escape":
      history.back();
      return true;
    case "j":
    case "ArrowDown":
      return step(current(), 1, event.key);
    case "k":
    case "ArrowUp":
      return step(current(), -1, event.key);
    case "Enter":
      return open(current(), go);
    case " ":
      if (document.activeElement?.matches("button, summary, input")) return false; // it presses them
      return current()?.toggle?.() ?? false;
    default:
      return false;
  }
}

function step(view, by, key) {
  if (view?.list) {
    view.list.move(by);
    return true;
  }
  const rows = [...document.querySelectorAll("main [data-row]")];
  const at = rows.indexOf(document.activeElement?.closest?.("[data-row]"));
  if (!rows.length || (key.startsWith("Arrow") && at < 0)) return false;
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

function open(view, go) {
  const focused = document.activeElement;
  if (focused?.matches("a, button, summary, input")) return false; // the browser does it
  const target = focused?.closest?.("[data-row]")?.querySelector("a[href]");
  const address = target ? target.pathname + target.search : view?.list?.chosen;
  if (address) go(address);
  return Boolean(address);
}

function helpDialog(tabs) {
  const rows = [...HELP, ...tabs.map(([, view]) => [`g ${view.key}`, view.title])];
  const dialog = h("dialog", { "aria-label": "Keys" });
  const close = h("button", { type: "button" }, "Close");
  close.addEventListener("click", () => dialog.close());
  return fill(
    dialog,
    h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    close,
  );
}
