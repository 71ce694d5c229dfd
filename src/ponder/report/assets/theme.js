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
    if (value.condition) return value; // inks that the chart itself chooses by what lies below them
    if (Array.isArray(value)) return value.map((each) => recoloured(each));
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, recoloured(inner, name)]));
  };
  const TEXT = { labelColor: "#c3c8cd", titleColor: "#e3e6e9" };

  // Panels below each other, each as wide as the page allows; the notes below a title are in the findings as well.
  const AXES = 64; // pixels beside a panel
  const stacked = (encoding, width) =>
    Object.fromEntries(Object.entries(encoding).map(([name, channel]) => {
      if (channel?.legend?.orient !== "bottom") return [name, channel];
      return [name, { ...channel, legend: { ...channel.legend, columns: 1, labelLimit: width - 40 } }];
    }));
  const narrowed = (spec, width, beside) => {
    const { hconcat, ...rest } = spec;
    const one = rest.encoding ? { ...rest, encoding: stacked(rest.encoding, width) } : { ...rest };
    if (hconcat) one.vconcat = hconcat;
    if (one.columns) one.columns = 1;
    for (const group of ["vconcat", "concat", "layer"]) if (one[group]) one[group] = one[group].map((each) => narrowed(each, width, beside));
    if (one.spec) one.spec = narrowed(one.spec, width, beside);
    if (typeof one.width === "number" && one.width > width - beside) one.width = width - beside;
    if (one.title?.text) one.title = { ...one.title, subtitle: undefined, limit: width };
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
  const theme = (spec, width, excess) => inked(theme.narrows(width) ? narrowed(spec, width, AXES + excess) : spec);
  theme.narrows = (width) => width < 520;
  globalThis.ponderTheme = theme;
  // Another theme needs other charts; the page is drawn again.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
})();
