// The page: finds the view of an address, shows it, and follows links within the page.
import { get } from "./api.js";
import { announce, fill, h, link } from "./dom.js";
import { listenToKeys } from "./keys.js";
import { problemBox } from "./parts.js";
import { listenForToken, tokenButton } from "./token.js";
import { openChanges } from "./views/changes.js";
import { openFleet } from "./views/fleet.js";
import { openLive } from "./views/live.js";
import { openObject } from "./views/object.js";
import { openQueues } from "./views/queues.js";
import { openRollouts } from "./views/rollouts.js";
import { openSearch } from "./views/search.js";
import { quickSearch } from "./quick.js";

const VIEWS = {
  "/": { title: "Fleet", open: openFleet, key: "f" },
  "/search": { title: "Search", open: openSearch, key: "s" },
  "/changes": { title: "Changes", open: openChanges, key: "c" },
  "/live": { title: "Live", open: openLive, key: "l" },
  "/queues": { title: "Queues", open: openQueues, key: "q" },
  "/rollouts": { title: "Rollouts", open: openRollouts, key: "r" },
  "/object": { title: "Object", open: openObject, key: "" },
};

let current = null;

/** Goes to an address of the page. */
export function go(address, { replace = false } = {}) {
  const here = location.pathname + location.search;
  if (address === here) return;
  history[replace ? "replaceState" : "pushState"]({}, "", address);
  show();
}

function show({ isRefresh = false } = {}) {
  const view = VIEWS[location.pathname] ?? VIEWS["/"];
  const focused = document.activeElement?.getAttribute?.("name");
  const samePlace = current?.view === view;
  current?.ending.abort(new DOMException("another view was opened", "AbortError"));
  current?.opened?.close?.();
  const ending = new AbortController();
  const main = document.getElementById("main");
  const params = new URLSearchParams(location.search);
  const context = { params, signal: ending.signal, go, with: (changes) => addressWith(changes), setTitle };
  current = { view, ending, opened: null };
  setTitle(view.title);
  mark(view);
  fill(main);
  try {
    current.opened = view.open(main, context) ?? null;
  } catch (error) {
    fill(main, problemBox(error));
    throw error;
  }
  if (samePlace && focused) main.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
  else if (!isRefresh && !samePlace) main.focus({ preventScroll: true });
  if (!samePlace) {
    scrollTo(0, 0);
    announce(view.title);
  }
}

/** The address of this view with other parameters. */
function addressWith(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined || value === false) query.delete(name);
    else query.set(name, value === true ? "1" : String(value));
  }
  const text = query.toString();
  return text ? `${location.pathname}?${text}` : location.pathname;
}

function setTitle(title) {
  document.title = `${title} · fleetbus`;
}

function mark(view) {
  for (const tab of document.querySelectorAll("#top nav a")) {
    const isThis = VIEWS[tab.pathname] === view;
    if (isThis) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}

function followLinks(event) {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || anchor.origin !== location.origin || !(anchor.pathname in VIEWS) || anchor.target) return;
  event.preventDefault();
  go(anchor.pathname + anchor.search);
}

/** Names the release that answers; the views say what is wrong if none does. */
async function showRelease() {
  const { version, commit } = await get("/fleet/v1/version");
  fill(document.getElementById("release"), `fleetbus ${version} ${commit.slice(0, 12)}`);
}

function start() {
  const tabs = Object.entries(VIEWS).filter(([, view]) => view.key);
  fill(
    document.getElementById("top"),
    link("/", {}, { class: "brand" }, "fleetbus"),
    h("nav", { "aria-label": "Views" }, tabs.map(([path, view]) => link(path, {}, { title: `g then ${view.key}` }, view.title))),
    quickSearch(go),
    tokenButton(() => show({ isRefresh: true })),
  );
  fill(
    document.getElementById("foot"),
    h("span", { id: "release" }),
    h("span", {}, "Read-only. What you see is what your token may read."),
    h("button", { type: "button", class: "quiet", id: "help" }, "Keys: ?"),
  );
  document.addEventListener("click", followLinks);
  addEventListener("popstate", () => show());
  listenForToken(() => {
    show({ isRefresh: true });
    showRelease().catch(() => undefined);
  });
  listenToKeys({ go, tabs, current: () => current?.opened });
  show();
  showRelease().catch(() => undefined);
}

start();
