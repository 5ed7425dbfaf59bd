// A box on long pages that leaves the entries with the words of a question: a part of a key, or a whole error message.
(() => {
  "use strict";

  const PAGES = [
    { page: "config-keys", entries: "section > section > section", ask: "Find a key: a part of its name, or words of its meaning" },
    { page: "errors", entries: "section > section > ul > li", ask: "Find an error: paste the message" },
  ];
  const MOSTLY = 0.6; // Of the words of an entry, those that a pasted message must have.
  const FEW = 4; // Words up to which a question is a search, not a pasted message.

  const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];

  // 1 where an entry has all words of the question, or parts of words; else the share of the entry's own words in it.
  const fit = (entry, question, words) => {
    if (words.every((word) => entry.text.includes(word))) return 1;
    if (words.length <= FEW || entry.words.length === 0) return 0;
    return entry.words.filter((word) => question.has(word)).length / entry.words.length;
  };

  const addTo = (section, { entries, ask }) => {
    const all = [...section.parentElement.querySelectorAll(`#${section.id} ${entries.replace(/^section > /, "> ")}`)];
    const items = all.map((element) => ({
      element,
      text: element.textContent.toLowerCase(),
      // What a message fills in is not among its words.
      words: wordsOf((element.firstChild.textContent + " " + element.textContent).replace(/‹[^›]*›/g, " ")),
    }));
    const box = document.createElement("search");
    box.className = "find-in-page";
    box.innerHTML = `<input type="search" placeholder="${ask}" aria-label="${ask}"><output aria-live="polite"></output>`;
    section.querySelector(":scope > section").before(box);
    const [input, count] = [box.querySelector("input"), box.querySelector("output")];

    const show = () => {
      const words = wordsOf(input.value.replace(/^error: */, ""));
      const question = new Set(words);
      const fits = items.map((item) => (words.length ? fit(item, question, words) : 1));
      const needed = Math.max(MOSTLY, Math.max(...fits) - 0.1);
      items.forEach((item, number) => (item.element.hidden = fits[number] < needed));
      const found = items.filter((item) => !item.element.hidden).length;
      section.querySelectorAll(":scope > section").forEach((group) => {
        group.hidden = found > 0 && words.length > 0 && !items.some((item) => !item.element.hidden && group.contains(item.element));
      });
      count.textContent = words.length ? `${found} of ${items.length}` : "";
    };

    input.addEventListener("input", show);
    const asked = new URLSearchParams(location.search).get("find");
    if (asked) {
      input.value = asked;
      show();
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const each of PAGES) {
      const section = document.querySelector(`section#${each.page}`);
      if (section) addTo(section, each);
    }
  });
})();
