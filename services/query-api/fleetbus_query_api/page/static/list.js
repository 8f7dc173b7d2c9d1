// A list of any length: only the rows that are seen have elements.
import { h } from "./dom.js";

const ROW = 26;
const BEYOND = 8;
const SAMPLED = 200;
const WIDEST = 44;

/**
 * A table whose rows are JSON texts, as the server sent them, parsed when they are seen.
 *
 * A hundred thousand rows are then some megabytes of strings and fifty elements.
 */
export class VirtualList {
  /**
   * @param {object} options
   * @param {string} options.label what the table has.
   * @param {(cells: string[]) => string} options.addressOf where a row leads.
   * @param {(cell: string, column: object) => string} options.toneOf the class of a cell.
   * @param {() => void} options.onNearEnd called when the last rows are almost seen.
   */
  constructor({ label, addressOf, toneOf, onNearEnd }) {
    this.rows = [];
    this.columns = [];
    this.selected = -1;
    this.total = null;
    this.addressOf = addressOf;
    this.toneOf = toneOf;
    this.onNearEnd = onNearEnd;
    this.pool = [];
    this.head = h("div", { class: "list-head", role: "row" });
    this.space = h("div", { class: "list-space", role: "rowgroup" });
    this.view = h(
      "div",
      { class: "list", role: "table", "aria-label": label, "aria-describedby": "list-help", tabindex: "0" },
      this.head,
      this.space,
    );
    this.element = h("div", { class: "list-frame" }, this.view);
    this.view.addEventListener("scroll", () => this.#plan(), { passive: true });
    this.view.addEventListener("click", (event) => this.#click(event));
    this.sizes = new ResizeObserver(() => this.#plan());
    this.sizes.observe(this.view);
  }

  close() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.planned);
  }

  /** Begins a new table. */
  begin(columns, headOf) {
    this.rows = [];
    this.selected = -1;
    this.columns = columns;
    this.pool = [];
    this.space.replaceChildren();
    this.head.replaceChildren(
      ...columns.map((column) => h("div", { role: "columnheader", title: column.description || null }, headOf(column))),
    );
    this.view.setAttribute("aria-colcount", String(columns.length));
    this.view.scrollTop = 0;
  }

  /** Adds rows at the end. */
  add(rows) {
    const isFirst = this.rows.length === 0;
    for (const row of rows) this.rows.push(row);
    if (isFirst) this.#measure();
    this.space.style.setProperty("height", `${this.rows.length * ROW}px`);
    this.view.setAttribute("aria-rowcount", String(this.total ?? (this.isWhole ? this.rows.length + 1 : -1)));
    this.#plan();
  }

  /** The cells of a row. */
  cells(index) {
    return JSON.parse(this.rows[index]);
  }

  /** Selects the row so many further on. */
  move(step) {
    if (!this.rows.length) return;
    const last = this.rows.length - 1;
    this.selected = Math.min(last, Math.max(0, this.selected + step));
    const top = this.selected * ROW;
    const height = this.view.clientHeight - ROW;
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (top + ROW > this.view.scrollTop + height) this.view.scrollTop = top + ROW - height;
    this.draw();
    const row = this.pool.find((one) => one.index === this.selected);
    row?.element.querySelector("a")?.focus({ preventScroll: true });
  }

  /** The address of the selected row; empty without one. */
  get chosen() {
    return this.selected < 0 ? "" : this.addressOf(this.cells(this.selected));
  }

  #measure() {
    const widths = this.columns.map((column) => column.name.length + 1);
    for (const row of this.rows.slice(0, SAMPLED))
      JSON.parse(row).forEach((cell, at) => {
        widths[at] = Math.max(widths[at] ?? 0, Math.min(cell.length, WIDEST));
      });
    const tracks = widths.map((width) => `minmax(${Math.max(width, 3) + 2}ch, ${Math.max(width, 3) + 2}fr)`);
    this.view.style.setProperty("--tracks", tracks.join(" "));
  }

  #plan() {
    cancelAnimationFrame(this.planned);
    this.planned = requestAnimationFrame(() => this.draw());
  }

  /** Draws the rows that are seen, with the elements of those that are not any more. */
  draw() {
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - BEYOND);
    const seen = Math.ceil(this.view.clientHeight / ROW) + 2 * BEYOND;
    const end = Math.min(this.rows.length, first + seen);
    while (this.pool.length < end - first) this.pool.push(this.#element());
    const size = this.pool.length;
    for (let index = first; index < end; index += 1) this.#draw(this.pool[index % size], index);
    for (const row of this.pool) {
      const isSeen = row.index >= first && row.index < end;
      if (row.isSeen !== isSeen) {
        row.isSeen = isSeen;
        row.element.hidden = !isSeen;
      }
    }
    if (end > this.rows.length - 2 * seen) this.onNearEnd();
  }

  #element() {
    const cells = this.columns.map((column) => h("div", { role: "cell", class: column.format === "name" ? "name" : "" }));
    const element = h("div", { class: "row", role: "row" }, cells);
    const anchor = h("a", { tabindex: "-1" });
    const at = Math.max(0, this.columns.findIndex((column) => column.format === "name"));
    cells[at].append(anchor);
    cells[at] = anchor;
    this.space.append(element);
    return { element, cells, anchor, index: -1, isSeen: true, isSelected: false, source: null };
  }

  #draw(row, index) {
    const isSelected = index === this.selected;
    if (row.isSelected !== isSelected) {
      row.isSelected = isSelected;
      row.element.classList.toggle("selected", isSelected);
    }
    if (row.index === index && row.source === this.rows[index]) return;
    row.index = index;
    row.source = this.rows[index];
    const cells = JSON.parse(row.source);
    row.element.style.setProperty("transform", `translateY(${index * ROW}px)`);
    row.element.classList.toggle("odd", index % 2 === 1);
    row.element.setAttribute("aria-rowindex", String(index + 2));
    row.anchor.setAttribute("href", this.addressOf(cells));
    row.cells.forEach((place, at) => {
      const text = cells[at] ?? "";
      if (place.textContent !== text) place.textContent = text;
      const tone = this.toneOf(text, this.columns[at]);
      if (place !== row.anchor && place.className !== tone) place.className = tone;
      place.title = text.length > 30 ? text : "";
    });
  }

  #click(event) {
    const element = event.target.closest(".row");
    const row = this.pool.find((one) => one.element === element);
    if (!row || event.target.closest("a") || String(getSelection())) return;
    this.selected = row.index;
    row.anchor.click();
  }
}
