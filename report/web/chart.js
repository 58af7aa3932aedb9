// The explorer's charts, drawn by Vega.

const MOST_TICKS = 14; // places on the horizontal axis that are all labelled
// Okabe and Ito 2008, as in the figures; the last one is the text's.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];
const charts = once(async () => (await library("charts"), window.vegaEmbed));

/** Draw a chart in the page's colours. */
async function embed(place, spec, actions) {
  const style = getComputedStyle(document.documentElement);
  const [ink, faint] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  const category = [isDark() ? LIGHTER : COLOURS[0], ...COLOURS.slice(1), ink];
  const words = { labelColor: ink, titleColor: ink, titleFontWeight: "normal" };
  const config = {
    font: "system-ui, sans-serif",
    range: { category },
    mark: { color: category[0] },
    view: { stroke: null },
    axis: { ...words, gridColor: faint, domainColor: faint, tickColor: faint },
    legend: { ...words, orient: "bottom", columns: innerWidth < 600 ? 2 : 5, labelLimit: 220, symbolLimit: 0 },
  };
  const box = make("div");
  place.replaceChildren(box);
  const whole = { width: "container", background: "transparent", config, ...spec };
  return (await charts())(box, whole, { ast: true, actions, tooltip: { theme: isDark() ? "dark" : "light" } });
}

/** The chart of some rows: lines for numbers, bars for names; a click on its legend selects one of the colours. */
async function drawChart(rows) {
  const { experiment, metric, x, y, colour, base, logX, logY } = choice();
  const { columns } = data;
  const details = varying(rows);
  const value = (name, row) => columns[name][row] ?? "none";
  const fields = [...details, x, y, "p20", "p80", ...(colour ? [colour] : [])];
  const every = rows.map((row) => ({ row, ...Object.fromEntries(fields.map((name) => [name, value(name, row)])) }));
  const values = base ? relative(every, y, base, details.filter((name) => name !== colour), colour) : every;
  const unit = base ? ` / ${base}` : columns.unit[rows[0]] && ` / ${columns.unit[rows[0]]}`;
  const lines = isNumber(x);
  const bars = !lines && !logY;
  const encoding = {
    x: lines ? scaled(x, logX) : { ...named(x), axis: { labelAngle: -30, labelLimit: 160 } },
    y: { ...scaled(y, logY), title: `${metric}, ${y}${unit}`, stack: null },
    ...(colour && { color: coloured(), opacity: { condition: { param: "picked", value: 1 }, value: 0.1 } }),
    ...(colour && bars && { xOffset: named(colour) }),
    detail: details.filter((name) => name !== x).map((field) => ({ field })),
    tooltip: [...details.map((field) => ({ field })), ...["p20", y, "p80"].map(statistic)],
  };

  /** Names in the order of the plan, in which the rows are; numbers by size. */
  function named(field) {
    return { field, type: "nominal", sort: isNumber(field) ? "ascending" : null };
  }
  function coloured() {
    const many = valuesOf(colour, rows).length > COLOURS.length + 1;
    return { ...named(colour), ...(many && { scale: { scheme: "tableau20" } }) };
  }
  function scaled(field, logarithmic) {
    const places = [...new Set(values.map((each) => each[field]))];
    const log = logarithmic && places.every((place) => place > 0);
    const scale = log ? { type: "log", nice: false, padding: 12 } : { zero: field === y };
    const ticks = field === x && places.length <= MOST_TICKS && { values: places };
    return { field, type: "quantitative", scale, axis: { format: "~r", ...ticks } };
  }
  function statistic(field) {
    return { field, title: field + unit, type: "quantitative", format: ".5~g" };
  }

  const range = { ...encoding, y: { ...encoding.y, field: "p20" }, y2: { field: "p80" } };
  const shape = !bars && details.includes("machine") && { shape: { field: "machine" } };
  const layer = [
    !bars && ["median", "mean"].includes(y) && { mark: { type: "rule", strokeOpacity: 0.45 }, encoding: range },
    lines && { mark: { type: "line", strokeOpacity: 0.7 }, encoding },
    { mark: bars ? "bar" : { type: "point", filled: true, size: 45 }, encoding: { ...encoding, ...shape } },
  ].filter(Boolean);
  layer.at(-1).params = colour ? [{ name: "picked", select: { type: "point", fields: [colour] }, bind: "legend" }] : [];
  const spec = { height: 340, data: { values }, layer };
  const { view } = await embed($("#explorer .chart"), spec, { export: true, source: false, compiled: false, editor: false });
  view.addEventListener("click", (_, item) => item?.datum?.row !== undefined && showDetail(experiment, item.datum.row));
}

/** Rows relative to the row of a base with the same details; those without such a row are omitted. */
function relative(rows, y, base, details, colour) {
  const key = (row) => JSON.stringify(details.map((name) => row[name]));
  const bases = new Map(rows.filter((row) => String(row[colour]) === base).map((row) => [key(row), row[y]]));
  const over = (row) => Object.fromEntries(["p20", "p80", y].map((name) => [name, row[name] / bases.get(key(row))]));
  return rows.filter((row) => bases.get(key(row))).map((row) => ({ ...row, ...over(row) }));
}

/** A row's samples in order. */
function drawSamples(place, samples, unit) {
  const values = samples.map((value, index) => ({ sample: index + 1, value }));
  const x = { field: "sample", type: "quantitative", axis: { tickMinStep: 1 } };
  const y = { field: "value", type: "quantitative", title: unit, axis: { tickCount: 3 } };
  return embed(place, { height: 90, data: { values }, mark: "point", encoding: { x, y } }, false);
}
