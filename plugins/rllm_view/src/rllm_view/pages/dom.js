// Elements without HTML, so that the output of a model is only text.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// Control characters are shown and have no effect: bidi overrides, NUL, halves of surrogate pairs.
export function shown(text) {
  return String(text).replace(HIDDEN, (found) => {
    if (found === "\n" || found === "\t") return found;
    const code = found.codePointAt(0);
    return code > 0xff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\x${code.toString(16).padStart(2, "0")}`;
  });
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("links stay on these pages");
    else node.setAttribute(name, value === true ? "" : shown(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : shown(child));
  }
  return node;
}

// el("a", {href: "#/", click: handler}, "text", otherElement)
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// Replaces the children of a node.
export function put(node, ...children) {
  node.replaceChildren();
  return fill(node, {}, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// A table; `numbers` are the columns that are aligned to the right. A heading that is an element is a whole cell.
export function table(label, headings, rows, numbers = []) {
  const side = (at) => (numbers.includes(at) ? { class: "number" } : {});
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    el("table", {},
      el("thead", {}, el("tr", {}, headings.map((each, at) => (each instanceof Node ? fill(each, side(at), []) : el("th", { scope: "col", ...side(at) }, each))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", side(at), cell)))))));
}

// Draws a part of the page again, and returns the focus to the link or heading that had it.
export function withFocus(node, draw) {
  const key = (each) => each.getAttribute("href") ?? each.dataset.order;
  const before = node.contains(document.activeElement) ? key(document.activeElement) : null;
  draw();
  if (before) [...node.querySelectorAll("a, button")].find((each) => key(each) === before)?.focus({ preventScroll: true });
}

// The text for a screen reader, such as the target of a key.
export function say(text) {
  document.getElementById("said").textContent = shown(text);
}
