// Figures of the live page and of a report: marks that lead to the attempts behind them, and tables that sort. A click on
// a mark is the event `mark`; the page says what it opens.
(() => {
  "use strict";
  const NEAR = 6; // pixels within which marks can't be told apart
  let pressed = [0, 0];
  document.addEventListener("pointerdown", (event) => { pressed = [event.clientX, event.clientY]; }, true);

  const leads = (item) =>
    item?.datum && !["group", "text"].includes(item.mark.marktype) && !/axis|legend|title/.test(item.mark.role ?? "");
  const near = (item) => item.mark.items
    .filter((other) => other.datum.attempt && Math.hypot(other.x - item.x, other.y - item.y) <= NEAR)
    .map((other) => other.datum.attempt);
  document.addEventListener("drawn", (event) => {
    const [figure, view] = [event.target, event.detail];
    if (!figure.closest("[data-leads]")) return;
    const caption = figure.querySelector("figcaption");
    caption.textContent = `Click a mark to see the attempts behind it. ${caption.textContent}`;
    view.addEventListener("click", (click, item) => {
      const moved = Math.hypot(click.clientX - pressed[0], click.clientY - pressed[1]);
      if (moved > 4 || !leads(item)) return; // the end of a drag
      const attempts = item.datum.attempt ? near(item) : [];
      figure.dispatchEvent(new CustomEvent("mark", { bubbles: true, detail: { attempts, datum: item.datum } }));
    });
    view.addEventListener("mouseover", (_, item) => figure.classList.toggle("leads", Boolean(leads(item))));
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("table.sortable th button");
    if (button) sort(button.closest("th"));
  });
  function sort(head) {
    const [table, column] = [head.closest("table"), [...head.parentNode.children].indexOf(head)];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.children[column].dataset.order ?? row.children[column].textContent;
    const number = (text) => (text === "–" ? -Infinity : Number(text.replaceAll(",", "")));
    const compare = (a, b) => {
      const [x, y] = [number(key(a)), number(key(b))];
      return Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x - y || 0;
    };
    const body = table.querySelector("tbody");
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(a, b)));
  }
})();
