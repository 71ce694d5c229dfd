// Lists of attempts and transcripts, on the live page and in a report: rows that open, j and k, and t for the thinking.
(() => {
  "use strict";
  const $ = (selector) => document.querySelector(selector);
  const go = (address) => { if (address) location.assign(address); };
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a") && !String(getSelection())) go(row.dataset.href);
  });
  function choose(step) {
    const rows = [...document.querySelectorAll("tr[data-href]")];
    if (!rows.length) return go($(step > 0 ? "a[rel=next]" : "a[rel=prev]")?.href);
    const before = rows.findIndex((row) => row.classList.contains("chosen"));
    if (before + step >= rows.length) return go($("a[rel=next]")?.href);
    if (before + step < 0 && before >= 0) return go($("a[rel=prev]")?.href);
    const chosen = Math.max(0, before + step);
    rows[before]?.classList.remove("chosen");
    rows[chosen].classList.add("chosen");
    rows[chosen].querySelector("a")?.focus({ preventScroll: true });
    rows[chosen].scrollIntoView({ block: "nearest" });
  }
  function unfold() {
    const all = [...document.querySelectorAll("details.thinking")];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  }
  // A long drawing, such as a table of turns, shows its first mistake.
  globalThis.ponderMistake = () => {
    for (const box of document.querySelectorAll(".drawings .table")) {
      const wrong = box.querySelector("td.wrong");
      if (wrong) box.scrollTop += wrong.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
    }
  };
  ponderMistake();
  globalThis.ponderKeys = { j: () => choose(1), k: () => choose(-1), t: unfold }; // a page may add its own
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "Escape" && event.target.closest("input, textarea, select")) return;
    const act = ponderKeys[event.key];
    if (!act || ($("#keys[open]") && event.key !== "?")) return;
    if (event.key !== "Escape") event.preventDefault();
    act();
  });
})();
