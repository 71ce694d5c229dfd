// Charts that fit the page: dark inks and lines in dark mode, and one narrow column of panels on a phone.
(() => {
  "use strict";
  const DARK = {
    white: "#17191c", "#fff": "#17191c", "#ffffff": "#17191c",
    "#222": "#e3e6e9", "#222222": "#e3e6e9", "#444": "#c3c8cd", "#444444": "#c3c8cd", black: "#e3e6e9",
    "#5f6368": "#a5abb1", "#9aa0a6": "#646a70", "#eceff1": "#2b2f33", "#8b929a": "#8b929a",
    "#1f6fb4": "#5aa7e6", "#b03a2e": "#e5695c", "#c8483f": "#e5695c", "#2c9c69": "#46ba86",
    "#8a5fbf": "#ab87d8", "#7a6a58": "#b3a18b", "#5b6770": "#93a0aa",
  };
  const recoloured = (value, key) => {
    if (typeof value === "string") return DARK[value.toLowerCase()] ?? value;
    if (key === "values" || key === "datasets" || value === null || typeof value !== "object") return value;
    if (value.name === "viridis") return { ...value, extent: [0.25, 1] }; // its dark end can't be seen on a dark page
    if (value.condition) return value; // inks that the chart itself chooses by what lies below them
    if (Array.isArray(value)) return value.map((each) => recoloured(each));
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, recoloured(inner, name)]));
  };
  const TEXT = { labelColor: "#c3c8cd", titleColor: "#e3e6e9" };

  // On a phone: panels below each other, each as wide as the page allows, and legends below them; the notes below a title
  // are in the findings as well.
  const AXES = 64; // pixels beside a panel
  const MARGIN = 30; // pixels around a chart
  const NARROWEST = 200; // of a panel
  const below = (legend, width) => ({ ...legend, orient: "bottom", direction: "vertical", columns: 1, labelLimit: width - 40, titleLimit: width - MARGIN });
  const stacked = (encoding, width) =>
    Object.fromEntries(Object.entries(encoding).map(([name, channel]) =>
      [name, channel?.legend ? { ...channel, legend: gradual(channel) ? { ...channel.legend, orient: "bottom", direction: "horizontal" } : below(channel.legend, width) } : channel]));
  const gradual = (channel) => channel.type === "quantitative" && !channel.bin && !channel.legend.symbolType; // a bar of colours
  // A title in lines of about 9 pixels a letter: bold, in a wide font.
  const lines = (title, width) =>
    [title].flat().flatMap((text) => text.match(new RegExp(`.{1,${Math.floor((width - MARGIN) / 9)}}(\\s|$)|\\S+`, "g")) ?? [text]).map((line) => line.trim());
  const narrowed = (spec, width, beside) => {
    const { hconcat, ...rest } = spec;
    const one = rest.encoding ? { ...rest, encoding: stacked(rest.encoding, width) } : { ...rest };
    if (hconcat) one.vconcat = hconcat;
    if (one.columns) one.columns = 1;
    for (const group of ["vconcat", "concat", "layer"]) if (one[group]) one[group] = one[group].map((each) => narrowed(each, width, beside));
    if (one.spec) one.spec = narrowed(one.spec, width, beside);
    if (typeof one.width === "number" && one.width > width - beside) one.width = Math.max(NARROWEST, width - beside);
    if (one.title?.text) one.title = { ...one.title, text: lines(one.title.text, width), subtitle: undefined, limit: width - MARGIN };
    return one;
  };

  const inked = (spec) => {
    if (!matchMedia("(prefers-color-scheme: dark)").matches) return spec;
    const dark = recoloured(spec);
    const config = dark.config ?? {};
    dark.config = {
      ...config,
      background: "transparent",
      axis: { ...TEXT, ...config.axis },
      legend: { ...TEXT, ...config.legend },
      title: { color: "#e3e6e9", ...config.title },
      text: { color: "#e3e6e9", ...config.text },
      header: TEXT,
    };
    delete dark.background;
    return dark;
  };
  // On a larger screen, panels that don't fit beside each other go into several rows; shrunken, they couldn't be read.
  const wrapped = (spec, width, drawn) => {
    const { hconcat, ...rest } = spec;
    const panels = hconcat ?? spec.concat;
    const columns = Math.min(panels?.length ?? 0, spec.columns ?? Infinity);
    if (columns > 1) return { ...rest, concat: panels, columns: Math.max(1, Math.floor((columns * width) / drawn)) };
    return spec.vconcat ? { ...spec, vconcat: spec.vconcat.map((each) => wrapped(each, width, drawn)) } : spec;
  };
  const fitted = (spec, width, drawn) => {
    if (width < PHONE) {
      const legend = below(spec.config?.legend, width);
      return narrowed({ ...spec, config: { ...spec.config, legend } }, width, AXES + Math.max(0, drawn - width));
    }
    return drawn > TOLERATED * width ? wrapped(spec, width, drawn) : spec;
  };
  const PHONE = 520;
  const TOLERATED = 1.08;
  // `drawn` is the chart's width as it came out the first time: that of its labels is not known before.
  globalThis.ponderTheme = (spec, width, drawn) => inked(fitted(spec, width, drawn));
  // Another theme needs other charts; the page is drawn again.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
})();
