// Of the live page: keys, figures that arrive later, marks that lead to lists, and a study that changes meanwhile.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const go = (address) => { if (address) location.assign(address); };

  // ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────
  let [asked, shown] = [0, 0]; // a slow answer doesn't replace a newer one
  async function load(place, address, quietly = false) {
    const number = ++asked;
    try {
      const answer = await fetch(address);
      const text = await answer.text();
      if (!answer.ok) throw new Error(`the server said ${answer.status}`);
      if (number < shown) return;
      shown = number;
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
  // How the attempts of each model ended, as the page would say it now.
  async function loadModels() {
    const [place, now] = [$("#by-model"), new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html")];
    const text = $("#by-model", now)?.innerHTML;
    if (!place || text === undefined) return;
    if ($("details", place)) keepOpen(place, text);
    else place.innerHTML = text;
  }
  const figures = $("#figures[data-src]");
  if (figures) load(figures, figures.dataset.src);

  // ── menus close when another opens, or on a click elsewhere ──────────────────────────────────────────────────────
  document.addEventListener("click", (event) => {
    for (const menu of $$("details.facet[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // ── from a mark to its attempts ──────────────────────────────────────────────────────────────────────────────────
  document.addEventListener("mark", ({ target, detail: { attempts, datum } }) => {
    const { study, groups } = target.closest("[data-study]").dataset;
    if (attempts.length > 1) return go(`${study}/attempts?${attempts.slice(0, 100).map((id) => `id=${id}`).join("&")}`);
    if (attempts.length) return go(`${study}/attempt/${attempts[0]}`);
    go(JSON.parse(groups)[datum.basis]); // published numbers have no attempts
  });

  // ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────
  const help = $("#keys");
  $("button.help").addEventListener("click", () => help.showModal());
  Object.assign(ponderKeys, {
    u: () => go($("[data-up]")?.href),
    "?": () => (help.open ? help.close() : help.showModal()),
    "/": () => { const field = $("input[type=search]"); if (field) field.select(); else go($(".tabs a[href*='/attempts']")?.href); },
    Escape: () => { for (const menu of $$("details.facet[open]")) menu.open = false; document.activeElement?.blur(); },
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
    $(".done", live).textContent = count(now.answered) + (now.asked ? ` of ${count(now.asked)}` : "") + ((now.asked ?? now.answered) === 1 ? " attempt" : " attempts");
    if (now.tokens) $(".spent", live).textContent = `${short(now.tokens)} tokens spent` + (now.cost ? `, ${now.cost.toFixed(2)} ${now.currency}` : "") + (now.held_tokens ? `, ${short(now.held_tokens)} reserved` : "");
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
      // Figures are estimated anew at most every ten seconds, and once more when the run has ended. A change while they
      // are due puts them off no further: a busy run changes its store all the time.
      if (later && now.state === "running") return;
      clearTimeout(later);
      later = setTimeout(() => {
        [later, drawn] = [undefined, Date.now()];
        load($("#figures"), `${live.dataset.live.replace(/\/live$/, "/figures")}${location.search}`, true);
        loadModels().catch(() => {}); // the server has ended; the next event, if one comes, tries again
      }, Math.max(now.state === "running" ? 2000 : 0, 10000 - (Date.now() - drawn)));
    };
    addEventListener("pagehide", () => events.close());
  }
  if ($("[data-running]")) setTimeout(() => location.reload(), 5000);
})();
