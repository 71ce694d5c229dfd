// Draws the live chart in place of its picture: tooltips, zoom and a legend that highlights. If that fails, the chart
// is drawn exactly as its author wrote it; if that fails too, the picture stays.
(() => {
  "use strict";
  const POINTS = ["point", "circle", "square"];
  // Bars and their like need their baseline in view, so they are not zoomed. The order is the order of preference.
  const ZOOMABLE = [...POINTS, "line", "trail", "rule", "tick", "area", "rect", "text"];
  const COMPOSITE = ["boxplot", "errorbar", "errorband"]; // they take no selections
  const LEGENDS = ["color", "fill", "stroke", "shape", "strokeDash", "size"];
  const GROUPS = ["hconcat", "vconcat", "concat"];
  // `ast` interprets Vega's expressions instead of compiling them, which the page's security policy forbids.
  const OPTIONS = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };

  const panels = (spec) => {
    const group = GROUPS.find((name) => spec[name]);
    if (group) return spec[group].flatMap(panels);
    return spec.spec ? panels(spec.spec) : [spec];
  };
  const units = (spec, encoding = {}) => {
    const all = { ...encoding, ...spec.encoding };
    return spec.layer ? spec.layer.flatMap((layer) => units(layer, all)) : [{ spec, encoding: all }];
  };
  const mark = (unit) => unit.spec.mark?.type ?? unit.spec.mark;
  // Whether any table of the spec passes a test; rows of data are not part of the spec.
  const some = (table, test) =>
    test(table) ||
    Object.entries(table).some(
      ([key, inner]) => key !== "values" && key !== "datasets" && inner && typeof inner === "object" && some(inner, test),
    );
  const hasSelection = (table) => Array.isArray(table.params) && table.params.some((param) => param.select);
  const loadsData = (table) => typeof table.data?.url === "string" || typeof table.from?.data?.url === "string";
  const isContinuous = (channel) =>
    channel?.field && !channel.bin && !channel.aggregate && ["quantitative", "temporal"].includes(channel.type) &&
    !["band", "point", "ordinal"].includes(channel.scale?.type);

  function addZoom(panel, name) {
    const all = units(panel);
    if (!all.every((unit) => ZOOMABLE.includes(mark(unit)))) return false;
    const rank = (unit) => ZOOMABLE.indexOf(mark(unit));
    const axes = (unit) => ["x", "y"].filter((axis) => isContinuous(unit.encoding[axis]));
    const [unit] = all
      .filter((each) => axes(each).length)
      .sort((a, b) => axes(b).length - axes(a).length || rank(a) - rank(b));
    if (!unit) return false;
    const select = { type: "interval", encodings: axes(unit), zoom: "wheel![event.ctrlKey || event.metaKey]" };
    unit.spec.params = [...(unit.spec.params ?? []), { name, select, bind: "scales" }];
    // Vega-Lite clips every mark of a zoomable chart, which would cut labels and dots at the edges from the start.
    for (const { spec } of all) {
      const type = spec.mark.type ? spec.mark : { type: spec.mark };
      spec.mark = { clip: { expr: `length(data("${name}_store")) > 0` }, ...type };
    }
    return true;
  }

  function addLegend(spec, panel, prefix) {
    const fields = new Set();
    for (const unit of units(panel).filter((each) => !COMPOSITE.includes(mark(each)))) {
      for (const channel of LEGENDS.map((name) => unit.encoding[name])) {
        const named = channel?.field && ["nominal", "ordinal"].includes(channel.type) && !channel.bin;
        if (!named || channel.legend === null || fields.has(channel.field)) continue;
        fields.add(channel.field);
        const param = `${prefix}_${fields.size}`;
        const select = { type: "point", fields: [channel.field], toggle: "true" };
        unit.spec.params = [...(unit.spec.params ?? []), { name: param, select, bind: "legend" }];
        for (const each of units(panel)) fade(spec, each, channel.field, param);
      }
    }
    return fields.size > 0;
  }

  function fade(spec, unit, field, param) {
    const uses = Object.values(unit.encoding).some((channel) => channel?.field === field);
    if (!uses || unit.encoding.opacity || COMPOSITE.includes(mark(unit))) return;
    const config = spec.config ?? {};
    const usual = POINTS.includes(mark(unit)) || mark(unit) === "tick" ? 0.7 : 1; // Vega-Lite's own defaults
    const full = unit.spec.mark.opacity ?? config[mark(unit)]?.opacity ?? config.mark?.opacity ?? usual;
    unit.spec.encoding = { ...unit.spec.encoding, opacity: { condition: { param, value: full }, value: full * 0.1 } };
  }

  function addTooltips(panel) {
    const all = units(panel);
    if (all.some((unit) => "tooltip" in unit.encoding || unit.spec.mark?.tooltip !== undefined)) return;
    for (const { spec } of all) spec.mark = { ...(spec.mark.type ? spec.mark : { type: spec.mark }), tooltip: true };
  }

  // Labels and lines without a tooltip let the mouse through to the marks below them.
  const letThrough = (vega) => {
    for (const mark of vega.marks ?? []) {
      if (mark.type === "group") letThrough(mark);
      else if (["text", "line", "area", "rule"].includes(mark.type) && !mark.encode?.update?.tooltip)
        mark.interactive = false;
    }
    return vega;
  };

  function interactive(spec) {
    if (some(spec, hasSelection)) return { spec, hints: [] }; // its author has decided
    const live = structuredClone(spec);
    const parts = panels(live).map((panel, n) => {
      addTooltips(panel);
      return [addZoom(panel, `zoom_${n}`), addLegend(live, panel, `legend_${n}`)];
    });
    const hints = [];
    if (parts.some(([zoom]) => zoom)) hints.push("Drag to pan, Ctrl + scroll to zoom, double-click to reset.");
    if (parts.some(([, legend]) => legend)) hints.push("Click legend entries to highlight them.");
    return { spec: live, hints, patch: letThrough };
  }

  const plain = (spec) => spec; // a notebook has no theme
  async function draw(figure) {
    const given = JSON.parse(figure.querySelector("script").textContent);
    if (some(given, loadsData)) return; // the page may load nothing; the picture has the data
    const theme = globalThis.ponderTheme ?? plain;
    const room = (figure.closest(".beside") ?? figure).clientWidth; // the figure itself is as wide as its picture
    for (const way of [interactive, (spec) => ({ spec, hints: [] })]) {
      try {
        let { live, view, hints } = await drawn(way(theme(given, room, 0)));
        const width = Number(live.querySelector("svg").getAttribute("width"));
        if (width > room && theme !== plain)
          ({ live, view, hints } = await drawn(way(theme(given, room, width)))); // so that it fits
        const picture = figure.querySelector("img, .picture");
        if (picture.matches("img")) picture.before(live); // it stays for paper
        else picture.replaceWith(live);
        figure.querySelector("figcaption").textContent = hints.join(" ");
        figure.dispatchEvent(new CustomEvent("drawn", { bubbles: true, detail: view }));
        return;
      } catch (error) {
        console.warn("chart:", error.message);
      }
    }
  }
  async function drawn({ spec, hints, patch }) {
    const live = document.createElement("div");
    live.className = "plot";
    const { view } = await vegaEmbed(live, spec, { ...OPTIONS, patch });
    return { live, view, hints };
  }

  const drawAll = () => {
    for (const figure of document.querySelectorAll("figure.chart:not([data-drawn])")) {
      figure.dataset.drawn = "";
      draw(figure);
    }
  };
  document.addEventListener("figures", drawAll); // some have been added
  drawAll();
})();
