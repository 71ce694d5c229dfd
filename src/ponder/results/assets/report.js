// Of a report: opens the attempts that the file holds. The address after # says which, so that the browser can go back:
// #behind-3f2a (the attempts of a mark), #wrong-3f2a (its longest wrong ones), #near-4,7 (dots on each other), #attempt-7.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const count = (number) => number.toLocaleString("en-US");
  const data = JSON.parse($("#attempts").textContent);
  const fields = ["id", "cell", "ended", "thinking", "answer", "problem", "block"];
  const attempts = data.rows.map((row) => Object.fromEntries(row.map((value, n) => [fields[n], value])));
  const byId = new Map(attempts.map((one) => [one.id, one]));
  const WRONG = ["wrong", "unparsed", "truncated"].map((name) => data.endings.indexOf(name));
  const SHOWN = 500; // rows of a list
  const reader = $("#reader");
  const inside = $(".inside", reader);
  const most = Math.max(1, ...attempts.map((one) => one.thinking + one.answer));
  let list = { hash: "#behind-all", rows: attempts }; // the one that was opened last

  function element(name, attributes = {}, ...children) {
    const made = document.createElementNS(["svg", "rect"].includes(name) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }
  const badge = (one) => element("span", { class: `badge ${data.endings[one.ended]}` }, data.endings[one.ended]);
  const tokens = (one) => one.thinking + one.answer;
  const labels = (one) => data.cells[one.cell];

  // ── which attempts ───────────────────────────────────────────────────────────────────────────────────────────────
  function found(hash) {
    const near = /^#near-([\d,]+)$/.exec(hash);
    if (near) {
      const ids = near[1].split(",").map(Number);
      return { hash, rows: ids.map((id) => byId.get(id)).filter(Boolean), total: ids.length, title: "behind these dots" };
    }
    const [, kind, number] = /^#(behind|wrong)-([0-9a-f]+|all)$/.exec(hash) ?? [];
    const group = number === "all" ? { cells: [], endings: [], total: data.all, title: "" } : data.groups[number];
    if (!group) return null;
    const [cells, endings] = [new Set(group.cells), new Set(kind === "wrong" ? WRONG : group.endings)];
    const rows = attempts.filter((one) =>
      (number === "all" || cells.has(one.cell)) && (!endings.size || endings.has(one.ended)));
    if (kind === "wrong") rows.sort((a, b) => tokens(b) - tokens(a));
    return { hash, rows, total: kind === "wrong" ? null : group.total, title: [group.title, kind === "wrong" ? "longest wrong" : ""].filter(Boolean).join(", ") };
  }

  function listed({ rows, total, title }) {
    const held = total === null || total === undefined || rows.length >= total ? "" :
      `${count(rows.length)} of ${count(total)} are in this file. ponder view shows all.`;
    const heads = ["ended", "model", "task", "size", "tokens"];
    const body = rows.slice(0, SHOWN).map((one) => {
      const [model, task, size] = labels(one);
      const spark = element("svg", { class: "spark", viewBox: `0 0 ${most} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
        element("rect", { class: "think", width: one.thinking, height: 1 }),
        element("rect", { class: "said", x: one.thinking, width: one.answer, height: 1 }));
      const link = element("a", { href: `#attempt-${one.id}`, "aria-label": `attempt ${one.id}: ${data.endings[one.ended]}` }, badge(one));
      const cells = [link, model, task, String(size), element("span", { class: "number" }, count(tokens(one)))];
      const row = element("tr", { "data-href": `#attempt-${one.id}` }, ...cells.map((cell, n) => element("td", { class: `c-${heads[n]}` }, cell)));
      row.lastChild.append(spark);
      return row;
    });
    const head = element("tr", {}, ...heads.map((name) => element("th", { class: `c-${name}` }, name)));
    inside.replaceChildren(
      element("h1", {}, `${count(total ?? rows.length)} ${(total ?? rows.length) === 1 ? "attempt" : "attempts"} `, element("small", {}, title)),
      ...(held ? [element("p", { class: "note" }, held)] : []),
      element("div", { class: "table" }, element("table", { class: "attempts" }, element("thead", {}, head), element("tbody", {}, ...body))),
      ...(rows.length > SHOWN ? [element("p", { class: "note" }, `The first ${SHOWN} are listed.`)] : []));
  }

  // ── one attempt ──────────────────────────────────────────────────────────────────────────────────────────────────
  async function unpacked(block) {
    const bytes = Uint8Array.from(atob(document.querySelectorAll("script.texts")[block].textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }
  function say(...text) {
    inside.replaceChildren(element("p", { class: "empty" }, ...text));
  }
  async function read(id) {
    const one = byId.get(id);
    if (!one) return say(`This file doesn't hold the transcript of attempt ${id}. ponder view shows it, and ponder report --transcripts MB gives transcripts more room.`);
    if (!globalThis.DecompressionStream) return say("This browser can't unpack the transcripts in this file: it lacks DecompressionStream. A newer one can; ponder view shows them too.");
    const texts = await unpacked(one.block);
    if (location.hash !== `#attempt-${id}`) return; // another was asked for meanwhile
    inside.innerHTML = texts[id]; // escaped when the report was written; the page's policy runs no script in it
    const same = attempts.filter((other) => other.problem === one.problem);
    $(".same", inside).replaceChildren(...same.slice(0, 24).map((other) => element("li", other === one ? { class: "here", "aria-current": "true" } : {},
      element("a", { href: `#attempt-${other.id}` }, badge(other), element("span", {}, labels(other)[0]), element("span", { class: "number" }, count(tokens(other)))))));
  }
  function around(id) {
    const at = list.rows.findIndex((one) => one.id === id);
    const link = (rel, text, other) => (other ? [element("a", { rel, href: `#attempt-${other.id}` }, text)] : []);
    $(".pages", reader).replaceChildren(...(at < 0 ? [] : [
      ...link("prev", "← Previous", list.rows[at - 1]),
      element("span", {}, `${count(at + 1)} of ${count(list.rows.length)}`),
      ...link("next", "Next →", list.rows[at + 1])]));
  }

  // ── the address ──────────────────────────────────────────────────────────────────────────────────────────────────
  async function open() {
    const id = Number(/^#attempt-(\d+)$/.exec(location.hash)?.[1]);
    const chosen = id ? null : found(location.hash);
    if (!id && !chosen) { inside.replaceChildren(); return reader.close(); }
    if (chosen) list = chosen;
    $("[data-back]", reader).hidden = !id;
    const asked = location.hash;
    if (id) await read(id); else listed(list);
    if (asked !== location.hash) return; // another was asked for meanwhile
    around(id);
    if (!reader.open) reader.showModal();
    reader.scrollTo(0, 0);
    ponderMistake(); // now that it has a height
  }
  addEventListener("hashchange", open);
  reader.addEventListener("close", () => { if (/^#(behind|wrong|near|attempt)-/.test(location.hash)) location.hash = "page"; });
  $("[data-close]", reader).addEventListener("click", () => reader.close());
  $("[data-back]", reader).addEventListener("click", () => { location.hash = list.hash; });
  document.addEventListener("mark", ({ detail: { attempts: ids, datum } }) => {
    if (ids.length) location.hash = ids.length > 1 ? `near-${ids.slice(0, 100).join(",")}` : `attempt-${ids[0]}`;
    else if (data.groups[datum.basis]) location.hash = `behind-${datum.basis}`;
  });
  open();
})();
