"use strict";
// What every page has: light and dark by choice, commands that copy themselves.
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
        getSelection().selectAllChildren(code);  // pages from disk may not write to the clipboard everywhere
        copy.textContent = "selected";
      }
    });
})();
