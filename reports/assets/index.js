"use strict";
// Filters the table of cases.
(() => {
  const filter = document.getElementById("filter"), shown = document.getElementById("shown");
  const buttons = [...document.querySelectorAll(".sieve")], cases = [...document.querySelectorAll("#table .case")];
  const texts = cases.map((each) => each.textContent.toLowerCase());
  const sieve = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.verdict);
    let count = 0;
    cases.forEach((each, index) => {
      const keep = (!wanted.length || wanted.includes(each.dataset.verdict)) && words.every((word) => texts[index].includes(word));
      each.hidden = !keep;
      count += keep;
    });
    shown.textContent = count === cases.length ? "" : `${count} of ${cases.length} cases`;
  };
  filter.addEventListener("input", sieve);
  for (const button of buttons)
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      sieve();
    });
})();
