// Times, numbers and lists of names as people read them.

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
];

/** A span like `3 ms`, `1.2 s`, `4m10s`, `3d4h`. */
export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "unknown";
  if (seconds < 0) return `-${span(-seconds)}`;
  if (seconds < 0.001) return seconds === 0 ? "0 s" : "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${trimmed(seconds)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const whole = Math.floor(seconds / size);
  const [nextSize, nextUnit] = UNITS[at + 1] ?? [1, "s"];
  const rest = Math.floor((seconds - whole * size) / nextSize);
  return rest && whole < 10 ? `${whole}${unit}${rest}${nextUnit}` : `${whole}${unit}`;
}

function trimmed(seconds) {
  return String(Math.round(seconds * 10) / 10);
}

/** How long ago a time was; empty without one. */
export function ago(time) {
  if (!time) return "";
  return `${span(Math.max(0, (Date.now() - Date.parse(time)) / 1000))} ago`;
}

/** The time of day, with the date if it is another one. */
export function clock(time, { millis = false } = {}) {
  if (!time) return "";
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return String(time);
  const two = (value) => String(value).padStart(2, "0");
  let text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (millis) text += `.${String(date.getMilliseconds()).padStart(3, "0")}`;
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? text : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${text}`;
}

/** A number with separators. */
export function count(number) {
  return Number(number).toLocaleString("en");
}

/** `1 cluster`, `2 clusters`. */
export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

/** The first names, and how many more there are. */
export function names(list, most = 6) {
  const more = list.length - most;
  return more > 0 ? `${list.slice(0, most).join(", ")} and ${more} more` : list.join(", ");
}

/** A value of a field in one line. */
export function short(value, most = 120) {
  if (value === null || value === undefined) return "absent";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > most ? `${text.slice(0, most)}…` : text === "" ? '""' : text;
}

const CONTEXT = 12;

/** Two values of a field, each in one line; long ones begin shortly before they differ. */
export function shortPair(before, after, most = 120) {
  const [a, b] = [before, after].map((value) => (typeof value === "string" ? value : JSON.stringify(value) ?? ""));
  let same = 0;
  while (same < a.length && a[same] === b[same]) same += 1;
  if (same <= CONTEXT * 2 || Math.max(a.length, b.length) <= most || before === undefined || after === undefined)
    return [short(before, most), short(after, most)];
  return [a, b].map((text) => `…${short(text.slice(same - CONTEXT), most)}`);
}

/** `namespace/name`, or the name alone. */
export function titleOf(namespace, name) {
  return namespace ? `${namespace}/${name}` : name;
}

/** The name of a resource as commands take it: `pods`, `deployments.apps`. */
export function resourceName(resource) {
  return resource.group === "core" || !resource.group
    ? resource.plural
    : `${resource.plural}.${resource.group}`;
}
