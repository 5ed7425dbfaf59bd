// The rollouts of a running run that wait, and for what. They open by themselves when the first is slow.

import { el, put, table } from "./dom.js";
import { count } from "./numbers.js";

export class Pending {
  constructor() {
    this.title = el("summary");
    this.rows = el("div");
    this.node = el("details", { hidden: true }, this.title, this.rows);
  }

  draw({ total, rows }) {
    const slow = rows.filter((row) => row.is_slow).length;
    if (slow && !this.slow) this.node.open = true;
    this.slow = slow;
    this.node.hidden = total === 0;
    put(this.title, `${count(total, "pending rollout", "pending rollouts")}, ${slow} slow`);
    put(this.rows,
      table("pending rollouts", ["rollout", "turn", "waits for", "seconds", ""],
        rows.map((row) => [row.rollout, String(row.turn), `${row.waits_for} ${row.name}`, row.seconds.toFixed(1), row.is_slow ? "slow" : ""]), [1, 3]),
      total > rows.length && el("p", { class: "quiet" }, `${total - rows.length} shorter waits are not shown.`));
  }
}
