// Rows in the order of the address, and headings that change the order.

import { keep } from "./address.js";
import { el } from "./dom.js";

const NATURAL = new Intl.Collator("en", { numeric: true });

const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

function inOrder(a, b) {
  return typeof a === "string" && typeof b === "string" ? NATURAL.compare(a, b) : Number(a) - Number(b);
}

// Text in its natural order (2 before 10), and rows without a value last.
export function sorted(rows, value, descending = false) {
  const found = rows.map((row) => [value(row), row]);
  found.sort(([a], [b]) => (isMissing(a) || isMissing(b) ? isMissing(a) - isMissing(b) : (descending ? -1 : 1) * inOrder(a, b)));
  return found.map(([, row]) => row);
}

// The order of a table. `columns`: [name, title]; `changed` draws the table again.
export class Order {
  constructor(query, columns, changed, first = { name: columns[0][0], descending: false }) {
    const known = columns.some(([name]) => name === query.order);
    this.name = known ? query.order : first.name;
    this.descending = known ? query.descending === "true" : first.descending;
    this.columns = columns;
    this.changed = changed;
  }

  headings() {
    return this.columns.map(([name, title]) => {
      const on = name === this.name;
      const sign = on ? (this.descending ? " ↓" : " ↑") : "";
      return el("th", { scope: "col", "aria-sort": on ? (this.descending ? "descending" : "ascending") : "none" },
        el("button", { class: "sort", "data-order": name, click: () => this.choose(name) }, title, el("span", { "aria-hidden": "true" }, sign)));
    });
  }

  // The values of a query for rows in this order.
  query() {
    return { order: this.name, descending: String(this.descending) };
  }

  choose(name) {
    this.descending = name === this.name && !this.descending;
    this.name = name;
    keep({ order: name, descending: this.descending ? "true" : "", offset: "" });
    return this.changed();
  }
}
