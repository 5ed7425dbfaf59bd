// The charts of a run, or of several: the chosen metrics, and the standard panels.

import { joined, keep, split } from "./address.js";
import { chart } from "./chart.js";
import { el, put } from "./dom.js";

const MOST_SMOOTH = 0.99;

// Joins the answers about several runs. The number of the run is before each name.
function together(answers) {
  if (answers.length === 1) return answers[0];
  const numbered = (name, at) => `${at + 1}: ${name}`;
  return {
    names: [...new Set(answers.flatMap((answer) => answer.names))].sort(),
    panels: answers[0].panels.map((panel, place) =>
      ({ ...panel, names: answers.flatMap((answer, at) => answer.panels[place].names.map((name) => numbered(name, at))) }))
      .filter((panel) => panel.id !== "time"),
    curves: Object.fromEntries(answers.flatMap((answer, at) =>
      Object.entries(answer.curves).map(([name, curve]) => [numbered(name, at), curve]))),
    runs: answers.length,
  };
}

function namesOf(answer, metric) {
  return answer.runs ? Array.from({ length: answer.runs }, (_, at) => `${at + 1}: ${metric}`) : [metric];
}

// `load(metrics)` returns an answer for each run. `open(step)` is called when a step is chosen.
export class Metrics {
  constructor(query, load, open) {
    this.load = load;
    this.open = open;
    this.chosen = split(query.metrics);
    this.smooth = Math.min(MOST_SMOOTH, Math.max(0, Number(query.smooth) || 0));
    this.log = query.log === "1";
    this.answer = { names: [], panels: [], curves: {} };
    this.charts = el("div", { class: "charts" });
    this.count = el("summary");
    this.search = el("input", {
      type: "search", placeholder: "find a metric", "aria-label": "find a metric", autocomplete: "off", input: () => this.filter(),
      keydown: (event) => event.key === "Enter" && this.choices.querySelector("label:not([hidden]) input")?.click(),
    });
    this.choices = el("div", { class: "choices", role: "group", "aria-label": "metrics" });
    this.none = el("p", { class: "quiet", hidden: true }, "No metric has this name.");
    this.clear = el("button", { click: () => this.choose([]) }, "standard charts only");
    this.picker = el("details", { class: "picker" }, this.count, el("p", { class: "tools" }, this.search, this.clear), this.choices, this.none);
    this.node = el("div", {}, el("h2", {}, "Metrics"), this.picker, this.controls(), this.charts);
  }

  controls() {
    const amount = el("output", {}, String(this.smooth));
    const slider = el("input", {
      type: "range", name: "smooth", min: "0", max: String(MOST_SMOOTH), step: "0.01", value: String(this.smooth),
      input: () => {
        this.smooth = Number(slider.value);
        amount.textContent = slider.value;
        this.draw();
      },
      // Browsers limit how often an address may change.
      change: () => keep({ smooth: this.smooth || "" }),
    });
    const box = el("input", {
      type: "checkbox", name: "log", checked: this.log, change: () => {
        this.log = box.checked;
        keep({ log: this.log ? "1" : "" });
        this.draw();
      },
    });
    return el("p", { class: "tools choose" }, el("label", {}, "smooth", slider, amount), el("label", {}, box, "log axis"));
  }

  // Opens the list of metrics and focuses its search field.
  find() {
    this.picker.open = true;
    this.search.focus();
  }

  async choose(names) {
    this.chosen = names;
    keep({ metrics: joined(names) });
    await this.update();
  }

  async update() {
    const { chosen } = this;
    const answer = together(await this.load(joined(chosen)));
    // More metrics were chosen while this was loading.
    if (chosen !== this.chosen) return;
    const isNew = answer.names.join("\n") !== this.answer.names.join("\n");
    this.answer = answer;
    if (isNew) this.list();
    for (const box of this.choices.querySelectorAll("input")) box.checked = chosen.includes(box.value);
    this.count.textContent = `Choose metrics: ${chosen.length} of ${answer.names.length}`;
    this.clear.disabled = !chosen.length;
    this.draw();
  }

  list() {
    put(this.choices, this.answer.names.map((name) => el("label", {}, el("input", {
      type: "checkbox", value: name,
      change: (event) => this.choose(event.target.checked ? [...this.chosen, name] : this.chosen.filter((each) => each !== name)),
    }), ` ${name}`)));
    this.filter();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const labels = [...this.choices.children];
    for (const label of labels) label.hidden = !words.every((word) => label.textContent.toLowerCase().includes(word));
    this.none.hidden = labels.some((label) => !label.hidden);
  }

  draw() {
    const { panels, curves } = this.answer;
    const chosen = this.chosen.map((metric) => ({ id: `metric ${metric}`, title: metric, names: namesOf(this.answer, metric) }));
    const focused = this.charts.contains(document.activeElement) ? document.activeElement.closest("figure")?.dataset.panel : null;
    const filled = [...chosen, ...panels.filter((panel) => panel.names.length)];
    put(this.charts, filled.length ? null : el("p", { class: "quiet" }, "No metric is recorded yet."), filled.map((panel) => chart(
      { ...panel, curves: panel.names.filter((name) => Object.hasOwn(curves, name)).map((name) => ({ name, ...curves[name] })) },
      this.open, { smooth: this.smooth, log: this.log })));
    if (focused) this.charts.querySelector(`[data-panel="${CSS.escape(focused)}"] [tabindex]`)?.focus({ preventScroll: true });
  }
}
