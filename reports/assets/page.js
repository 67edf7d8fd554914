"use strict";
// For every page: switch between light and dark, copy commands.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const asked = new URLSearchParams(location.search).get("theme");
  if (asked === "dark" || asked === "light") root.style.colorScheme = asked;
  button.addEventListener("click", () => {
    root.style.colorScheme = dark() ? "light" : "dark";
    document.dispatchEvent(new Event("theme"));
  });
  for (const copy of document.querySelectorAll(".command button"))
    copy.addEventListener("click", async () => {
      const code = copy.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);  // some browsers do not let pages from disk write to the clipboard
        copy.textContent = "selected";
      }
    });
})();
