// A box on long pages that leaves the entries with the words of a question: a part of a key, or a whole error message.
(() => {
  "use strict";

  const PAGES = [
    { page: "config-keys", entries: "section > section > section", ask: "Find a key: a part of its name, or words of its meaning" },
    { page: "errors", entries: "section > section > ul > li", ask: "Find an error: paste the message" },
  ];
  const MOSTLY = 0.7; // Of the words of an entry, those that a pasted message must have.
  const CLOSE = 0.7; // Of the most words that any entry has in common with the message.
  const FEW = 4; // Words up to which a question is a search, not a pasted message.

  const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];

  // The words of what is wrong; not what the message fills in, nor what to do.
  const ownWords = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll("em").forEach((remedy) => remedy.remove());
    return [...new Set(wordsOf(copy.textContent.replace(/‹[^›]*›/g, " ")))];
  };

  // How well an entry fits: a search asks for all its words; a message for most of the entry's own words, and for many.
  const fit = (entry, question, words) => {
    if (words.length <= FEW) return words.every((word) => entry.text.includes(word)) ? 1 : 0;
    const met = entry.words.filter((word) => question.has(word)).length;
    return met >= MOSTLY * entry.words.length ? met : 0;
  };

  const addTo = (section, { entries, ask }) => {
    const all = [...section.parentElement.querySelectorAll(`#${section.id} ${entries.replace(/^section > /, "> ")}`)];
    const items = all.map((element) => ({
      element,
      text: element.textContent.toLowerCase(),
      words: ownWords(element),
    }));
    const box = document.createElement("search");
    box.className = "find-in-page";
    box.innerHTML = `<input type="search" placeholder="${ask}" aria-label="${ask}"><output aria-live="polite"></output>`;
    section.querySelector(":scope > p").after(box);
    const [input, count] = [box.querySelector("input"), box.querySelector("output")];

    const show = () => {
      const words = wordsOf(input.value.replace(/^error: */, ""));
      const question = new Set(words);
      const fits = items.map((item) => (words.length ? fit(item, question, words) : 1));
      const needed = Math.max(1, CLOSE * Math.max(...fits));
      items.forEach((item, number) => (item.element.hidden = fits[number] < needed));
      const found = items.filter((item) => !item.element.hidden).length;
      section.querySelectorAll(":scope > section").forEach((group) => {
        group.hidden = found > 0 && words.length > 0 && !items.some((item) => !item.element.hidden && group.contains(item.element));
      });
      // An answer stands below the question, not below what the page says of itself.
      section.querySelectorAll(":scope > ul, :scope > search ~ p").forEach((each) => (each.hidden = words.length > 0));
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
