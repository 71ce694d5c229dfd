// Clicks on charts, keys, tables that sort, figures that arrive later, and a study that changes while one looks.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const go = (address) => { if (address) location.assign(address); };

  // ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────
  async function load(place, address, quietly = false) {
    try {
      const answer = await fetch(address);
      const text = await answer.text();
      if (!answer.ok) throw new Error(`the server said ${answer.status}`);
      if (quietly) keepOpen(place, text);
      else place.innerHTML = text;
      place.classList.remove("waiting");
      place.removeAttribute("aria-busy");
      document.dispatchEvent(new Event("figures"));
    } catch (error) {
      if (!quietly) $(".note", place).textContent = `The figures did not come: ${error.message}`;
    }
  }
  // New figures in place of old ones: what was unfolded stays so, and the page keeps its height meanwhile.
  function keepOpen(place, text) {
    const open = new Set($$("details[open]", place).map((one) => $$("details", place).indexOf(one)));
    place.innerHTML = text;
    $$("details", place).forEach((one, n) => { one.open = open.has(n); });
  }
  const figures = $("#figures[data-src]");
  if (figures) load(figures, figures.dataset.src);

  // ── from a mark to its attempts ──────────────────────────────────────────────────────────────────────────────────
  const NEAR = 6; // pixels within which marks can't be told apart
  let pressed = [0, 0];
  document.addEventListener("pointerdown", (event) => { pressed = [event.clientX, event.clientY]; }, true);

  function leads(item) {
    return item?.datum && !["group", "text"].includes(item.mark.marktype) && !/axis|legend|title/.test(item.mark.role ?? "");
  }
  document.addEventListener("drawn", (event) => {
    const [figure, view] = [event.target, event.detail];
    const study = figure.closest("[data-study]")?.dataset.study;
    if (!study) return;
    const caption = $("figcaption", figure);
    caption.textContent = `Click a mark to see the attempts behind it. ${caption.textContent}`;
    view.addEventListener("click", (click, item) => {
      const moved = Math.hypot(click.clientX - pressed[0], click.clientY - pressed[1]);
      if (moved > 4 || !leads(item)) return; // the end of a drag
      go(item.datum.attempt ? near(study, item) : behind(study, item.datum));
    });
    view.addEventListener("mouseover", (_, item) => figure.classList.toggle("leads", Boolean(leads(item))));
  });
  function near(study, item) {
    const ids = item.mark.items
      .filter((other) => other.datum.attempt && Math.hypot(other.x - item.x, other.y - item.y) <= NEAR)
      .map((other) => other.datum.attempt);
    const list = `${study}/attempts?${ids.slice(0, 100).map((id) => `id=${id}`).join("&")}`;
    return ids.length > 1 ? list : `${study}/attempt/${item.datum.attempt}`;
  }
  function behind(study, datum) {
    const plain = Object.entries(datum).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value));
    const row = new URLSearchParams(plain.map(([name, value]) => [name, JSON.stringify(value)]));
    return `${study}/behind?${row}`;
  }

  // ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────
  document.addEventListener("click", (event) => {
    const button = event.target.closest("table.sortable th button");
    if (button) sort(button.closest("th"));
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a") && !String(getSelection())) go(row.dataset.href);
  });
  function sort(head) {
    const [table, column] = [head.closest("table"), [...head.parentNode.children].indexOf(head)];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of $$("th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.children[column].textContent;
    const number = (text) => (text === "–" ? -Infinity : Number(text.replaceAll(",", "")));
    const compare = (a, b) => {
      const [x, y] = [number(key(a)), number(key(b))];
      return Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x - y || 0;
    };
    const body = $("tbody", table);
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(a, b)));
  }

  // ── menus close when another opens, or on a click elsewhere ──────────────────────────────────────────────────────
  document.addEventListener("click", (event) => {
    for (const menu of $$("details.facet[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────
  const help = $("#keys");
  $("button.help")?.addEventListener("click", () => help.showModal());
  let chosen = -1;
  function choose(step) {
    const rows = $$("tr[data-href]");
    if (!rows.length) return go($(step > 0 ? "a[rel=next]" : "a[rel=prev]")?.href);
    if (chosen + step >= rows.length) return go($("a[rel=next]")?.href);
    if (chosen + step < 0 && chosen >= 0) return go($("a[rel=prev]")?.href);
    rows[chosen]?.classList.remove("chosen");
    chosen = Math.max(0, chosen + step);
    rows[chosen].classList.add("chosen");
    $("a", rows[chosen])?.focus({ preventScroll: true });
    rows[chosen].scrollIntoView({ block: "nearest" });
  }
  function unfold() {
    const all = $$("details.thinking");
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  }
  const KEYS = {
    j: () => choose(1),
    k: () => choose(-1),
    u: () => go($("[data-up]")?.href),
    t: unfold,
    "?": () => (help.open ? help.close() : help.showModal()),
    "/": () => { const field = $("input[type=search]"); if (field) field.select(); else go($(".tabs a[href*='/attempts']")?.href); },
    Escape: () => { for (const menu of $$("details.facet[open]")) menu.open = false; document.activeElement?.blur(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "Escape" && event.target.closest("input, textarea, select")) return;
    const act = KEYS[event.key];
    if (!act || (help.open && event.key !== "?")) return;
    if (event.key !== "Escape") event.preventDefault();
    act();
  });

  // ── live ─────────────────────────────────────────────────────────────────────────────────────────────────────────
  const clock = (seconds) => {
    const minutes = Math.round(seconds / 60);
    if (seconds < 90) return `${Math.round(seconds)} s`;
    return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const short = (number) => {
    for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (number >= unit) return Number((number / unit).toPrecision(3)) + name;
    return String(number);
  };
  const count = (number) => number.toLocaleString("en-US");
  const SVG = "http://www.w3.org/2000/svg";

  function show(live, now) {
    const state = $(".state", live);
    state.textContent = now.state;
    state.className = `state ${now.state.split(" ")[0]}`;
    $(".done", live).textContent = count(now.answered) + (now.asked ? ` of ${count(now.asked)}` : "") + " attempts";
    if (now.tokens) $(".spent", live).textContent = `${short(now.tokens)} tokens spent` + (now.cost ? `, ${now.cost.toFixed(2)} ${now.currency}` : "");
    const pace = [];
    if (now.state === "running" && now.per_minute) pace.push(`${count(now.per_minute)} per minute`);
    if (now.state === "running" && now.seconds_left !== null) pace.push(`about ${clock(now.seconds_left)} left`);
    $(".pace", live).textContent = pace.join(", ");
    bar($(".endings", live), now);
    $(".counts", live).replaceChildren(...Object.entries(now.ended).filter(([, n]) => n).map(([name, n]) => {
      const item = document.createElement("li");
      const number = document.createElement("b");
      number.textContent = count(n);
      item.className = name;
      item.append(number, ` ${name}`);
      return item;
    }));
    $(".failures", live).replaceChildren(...now.failures.map((failure) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${live.dataset.live.replace(/\/live$/, "")}/attempt/${failure.id}`;
      link.textContent = `attempt ${failure.id}`;
      item.append(link, ` failed: ${failure.why}`);
      return item;
    }));
  }
  function bar(svg, now) {
    const ended = Object.entries(now.ended).filter(([, n]) => n);
    const total = Math.max(1, now.asked ?? 0, ended.reduce((sum, [, n]) => sum + n, 0));
    svg.setAttribute("viewBox", `0 0 ${total} 1`);
    let x = 0;
    svg.replaceChildren(...ended.map(([name, n]) => {
      const rect = document.createElementNS(SVG, "rect");
      for (const [key, value] of Object.entries({ class: name, x, y: 0, width: n, height: 1 })) rect.setAttribute(key, value);
      x += n;
      return rect;
    }));
  }
  const live = $("[data-live]");
  if (live) {
    let [version, drawn] = [live.dataset.version, Date.now()];
    let later;
    const events = new EventSource(live.dataset.live);
    events.onmessage = (event) => {
      const now = JSON.parse(event.data);
      if (!now.ended) return;
      show(live, now);
      if (now.version.join(",") === version || !$("#figures")) return;
      version = now.version.join(",");
      clearTimeout(later);
      // Figures are estimated anew at most every ten seconds, and once more when the run has ended.
      later = setTimeout(() => {
        drawn = Date.now();
        load($("#figures"), `${live.dataset.live.replace(/\/live$/, "/figures")}${location.search}`, true);
      }, Math.max(now.state === "running" ? 2000 : 0, 10000 - (Date.now() - drawn)));
    };
    addEventListener("pagehide", () => events.close());
  }
  if ($("[data-running]")) setTimeout(() => location.reload(), 5000);
})();
