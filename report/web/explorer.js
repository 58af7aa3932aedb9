// All rows of all experiments: a chart and a table of those chosen, and everything that was recorded with one.

const MOST_CHOICES = 60; // values of a column that are listed to choose from; of more, a text is searched
const MOST_TICKS = 14; // places on the horizontal axis that are all named
// Okabe and Ito 2008, as in the figures; the last one is the text's.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "ink"];
const STATISTICS = ["median", "mean", "std", "p20", "p80", "n"];
const LISTED = ["metric", "unit", "n", "mean", "std", "median", "p20", "p80", "status"];

const rowsOfAll = once(async () => JSON.parse(await unpack("rows")));
const charts = once(async () => (await library("charts"), window.vegaEmbed));
const tables = once(async () => {
  document.head.append(make("style", {}, await unpack("tables-style")));
  return (await library("tables")).default;
});

const view = { experiment: "", metric: "", x: "", y: "median", colour: "", mark: "automatic", logX: false, logY: false };
let data, chosen; // the experiment's entry, and for each filtered column its values (a Set) or a text
let start = once(async () => {
  const { experiments } = await rowsOfAll();
  const filled = Object.keys(experiments).filter((name) => experiments[name].columns.experiment.length);
  if (filled.length) choose(filled[0]);
  else $("#explorer .count").textContent = "No row has been measured.";
});

new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && start()).observe($("#explorer"));

/** Show an experiment's rows. */
async function explore(experiment) {
  const { experiments } = await rowsOfAll();
  start = async () => {};
  $("#explorer").scrollIntoView();
  if (experiments[experiment]?.columns.experiment.length) await choose(experiment);
}

const distinct = (column) => [...new Set(data.columns[column])];
const everyRow = () => data.columns.experiment.map((_, row) => row);
const varying = () => parametersOf().filter((column) => distinct(column).length > 1);
const parametersOf = () => ["machine", ...Object.keys(data.parameters), ...data.details];
const isNumber = (column) => data.columns[column].some((value) => typeof value === "number");

/** Values as a reader expects them: numbers by size, names in the order of the plan, in which the rows are. */
function ordered(column, values) {
  const place = new Map(distinct(column).map((value, index) => [value, index]));
  const number = (value) => typeof value === "number";
  return [...values].sort((one, other) => (number(one) && number(other) ? one - other : place.get(one) - place.get(other)));
}

/** The most frequent of some values. */
function mode(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].reduce((best, each) => (each[1] > best[1] ? each : best), [undefined, 0])[0];
}

/** The largest of a column's numbers over the smallest; 1 if not all are above zero. */
function span(column, rows) {
  const numbers = rows.map((row) => data.columns[column][row]).filter((value) => typeof value === "number");
  const least = Math.min(...numbers);
  return least > 0 && numbers.length ? Math.max(...numbers) / least : 1;
}

/** Begin with an experiment: its main metric over its longest grid, all else at the setting that has most rows. */
async function choose(experiment) {
  data = (await rowsOfAll()).experiments[experiment];
  view.experiment = experiment;
  const metrics = distinct("metric").filter((metric) => data.columns.metric.some((each, row) => each === metric && data.columns.median[row] !== null));
  await chooseMetric(metrics.includes(data.timed) ? data.timed : (metrics.find((metric) => !["wall", "cell"].includes(metric)) ?? distinct("metric")[0]));
}

async function chooseMetric(metric) {
  view.metric = metric;
  const rows = everyRow().filter((row) => data.columns.metric[row] === metric);
  const many = (column) => new Set(rows.map((row) => data.columns[column][row])).size;
  const ranked = varying().filter((column) => many(column) > 1).sort((one, other) => many(other) - many(one));
  const names = ranked.filter((column) => !isNumber(column) && column !== "machine" && many(column) <= MOST_CHOICES);
  view.x = ranked.find((column) => isNumber(column)) ?? ranked[0] ?? "metric";
  view.colour = names.find((column) => column !== view.x) ?? ranked.find((column) => column !== view.x) ?? "";
  const rest = ranked.filter((column) => ![view.x, view.colour, "machine"].includes(column));
  const setting = (row) => JSON.stringify(rest.map((column) => data.columns[column][row]));
  const usual = JSON.parse(mode(rows.map(setting)) ?? "[]");
  chosen = new Map(rest.map((column, index) => [column, many(column) > MOST_CHOICES ? "" : new Set([usual[index]])]));
  if (view.colour && new Set(matching().map((row) => data.columns[view.x][row])).size < 2) {
    [view.x, view.colour] = [view.colour, ""]; // one place on the axis: names make better bars
  }
  view.logX = span(view.x, rows) >= 8;
  view.logY = span(view.y, matching()) > 100;
  await refresh();
}

/** The rows that the metric and the filters leave. */
function matching() {
  return everyRow().filter((row) => {
    if (view.metric && data.columns.metric[row] !== view.metric) return false;
    for (const [column, wanted] of chosen) {
      const value = data.columns[column][row];
      if (wanted instanceof Set ? !wanted.has(value) : !String(value ?? "").toLowerCase().includes(wanted.toLowerCase())) return false;
    }
    return true;
  });
}

async function refresh() {
  showControls();
  showFilters();
  await showRows();
}

async function showRows() {
  const rows = matching();
  const about = view.metric ? data.metrics[view.metric] : "";
  $("#explorer .count").textContent = `${rows.length} of ${data.columns.experiment.length} rows. ${about ? `${about}.` : ""}`;
  await Promise.all([drawChart(rows), listRows(rows)]);
}

function control(title, key, options, change) {
  const select = make("select", {
    name: key,
    change: (event) => (change ? change(event.target.value) : ((view[key] = event.target.value), refresh())),
  });
  for (const [value, text] of options) select.append(make("option", { value, selected: value === view[key] }, text));
  return make("label", {}, title, select);
}

async function showControls() {
  const plain = (names) => names.map((name) => [name, name]);
  const axes = ["metric", ...varying()];
  const { experiments } = await rowsOfAll();
  const filled = Object.keys(experiments).filter((name) => experiments[name].columns.experiment.length);
  const toggle = (title, key) => make("label", { class: "switch" }, make("input", { type: "checkbox", name: key, checked: view[key], change: (event) => ((view[key] = event.target.checked), showRows()) }), title);
  $("#explorer .controls").replaceChildren(
    control("Experiment", "experiment", plain(filled), choose),
    control("Metric", "metric", [...plain(distinct("metric").sort()), ["", "all (no chart)"]], (metric) => (metric ? chooseMetric(metric) : ((view.metric = ""), refresh()))),
    control("Horizontal axis", "x", plain(axes)),
    control("Vertical axis", "y", plain(STATISTICS)),
    control("Colour", "colour", [["", "none"], ...plain(axes)]),
    control("Marks", "mark", plain(["automatic", "lines", "bars", "points"])),
    make("fieldset", {}, make("legend", {}, "Logarithmic"), toggle("horizontal", "logX"), toggle("vertical", "logY")),
  );
}

function showFilters() {
  const boxes = [...varying(), "status"].filter((column) => distinct(column).length > 1).map((column) => {
    const values = ordered(column, distinct(column));
    if (values.length > MOST_CHOICES) return searched(column);
    const wanted = chosen.get(column);
    const summary = make("summary");
    const tell = () => {
      const now = chosen.get(column);
      summary.textContent = `${column}: ${!now ? "all" : now.size > 2 ? `${now.size} of ${values.length}` : [...now].map((value) => (value === "" ? "(none)" : shown(value))).join(", ") || "none"}`;
      summary.classList.toggle("active", Boolean(now));
    };
    const inputs = values.map((value) => make("input", { type: "checkbox", checked: !wanted || wanted.has(value) }));
    const changed = () => {
      const now = values.filter((_, index) => inputs[index].checked);
      if (now.length === values.length) chosen.delete(column);
      else chosen.set(column, new Set(now));
      tell();
      showRows();
    };
    const set = (yes) => (inputs.forEach((input) => (input.checked = yes)), changed());
    tell();
    const choices = values.map((value, index) => make("label", {}, inputs[index], value === "" ? "(none)" : String(value)));
    const list = make("div", { class: "choices", change: changed },
      make("span", {}, make("button", { type: "button", click: () => set(true) }, "all"), make("button", { type: "button", click: () => set(false) }, "none")),
      ...choices);
    const meaning = data.parameters[column];
    return make("details", { "data-column": column, title: meaning }, summary, list);
  });
  const clear = make("button", { type: "button", class: "clear", click: () => (chosen.clear(), refresh()) }, "Clear filters");
  $("#explorer .filters").replaceChildren(...boxes, clear);
}

function searched(column) {
  const change = (event) => (chosen.set(column, event.target.value), showRows());
  return make("label", { "data-column": column }, `${column} has `, make("input", { type: "search", value: chosen.get(column) ?? "", input: change }));
}

/** The chart of some rows, with 20th and 80th percentiles next to a median or a mean. */
async function drawChart(rows) {
  const place = $("#explorer .chart");
  const { columns } = data;
  const values = rows.filter((row) => columns[view.y][row] !== null).map((row) => ({
    row,
    x: columns[view.x][row] ?? "none",
    y: columns[view.y][row],
    name: columns[view.colour]?.[row],
    colour: view.colour ? String(columns[view.colour][row] ?? "none") : undefined,
    machine: columns.machine[row],
    low: columns.p20[row],
    high: columns.p80[row],
    spread: `${shown(columns.p20[row])} to ${shown(columns.p80[row])}`,
    rest: JSON.stringify(varying().filter((column) => column !== view.x).map((column) => columns[column][row])),
    told: varying().map((column) => shown(columns[column][row])).join(", "),
  }));
  if (!view.metric || !values.length) {
    place.replaceChildren(make("p", { class: "reason" }, view.metric ? "No row has a number to draw." : "Choose a metric to draw."));
    return;
  }
  const continuous = isNumber(view.x) && view.mark !== "bars";
  const lines = view.mark === "lines" || (view.mark === "automatic" && continuous);
  const bars = view.mark === "bars" || (view.mark === "automatic" && !continuous && !view.logY);
  const unit = columns.unit[values[0].row];
  const machines = new Set(values.map((value) => value.machine)).size > 1;
  const positive = (key) => values.every((value) => value[key] > 0);
  const scale = (key, log) => (log && positive(key) ? { type: "log", nice: false, padding: 12 } : { zero: key === "y" });
  const places = ordered(view.x, new Set(values.map((value) => value.x)));
  const style = getComputedStyle(document.documentElement);
  const [ink, faint] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  const named = view.colour ? ordered(view.colour, new Set(values.map((value) => value.name))).map((name) => String(name ?? "none")) : [];
  const encoding = {
    x: continuous
      ? { field: "x", type: "quantitative", title: view.x, scale: scale("x", view.logX), axis: { format: "~r", ...(places.length <= MOST_TICKS && { values: places }) } }
      : { field: "x", type: "nominal", title: view.x, sort: ordered(view.x, distinct(view.x)), axis: { labelAngle: -30, labelLimit: 160 } },
    y: { field: "y", type: "quantitative", title: `${view.metric}, ${view.y}${unit ? ` / ${unit}` : ""}`, scale: scale("y", view.logY && !bars) },
    ...(view.colour && {
      color: { field: "colour", type: "nominal", title: view.colour, sort: named, scale: named.length > COLOURS.length ? { scheme: "tableau20" } : { range: [isDark() ? LIGHTER : COLOURS[0], ...COLOURS.slice(1, -1), ink] }, legend: { orient: "bottom", columns: innerWidth < 600 ? 2 : 5, labelLimit: 220, symbolLimit: 0 } },
    }),
    ...(bars && view.colour && { xOffset: { field: "colour" } }),
    ...(machines && !bars && { shape: { field: "machine", type: "nominal", title: "machine" } }),
    detail: [{ field: "rest" }],
    tooltip: [
      { field: "told", title: varying().join(", ") || "cell" },
      { field: "y", title: `${view.y}${unit ? ` / ${unit}` : ""}`, format: ".5~g" },
      { field: "spread", title: "20 % to 80 %" },
    ],
  };
  const { color, shape, ...common } = encoding;
  const coloured = { ...common, ...(color && { color }) };
  const range = ["median", "mean"].includes(view.y) && !bars && { mark: { type: "rule", opacity: 0.45 }, encoding: { ...coloured, y: { ...encoding.y, field: "low" }, y2: { field: "high" } } };
  const spec = {
    width: "container",
    height: 340,
    background: "transparent",
    data: { values },
    layer: [
      ...(range ? [range] : []),
      ...(lines ? [{ mark: { type: "line", opacity: 0.7 }, encoding: { ...coloured, ...(machines && { strokeDash: { field: "machine", type: "nominal" } }) } }] : []),
      { mark: bars ? { type: "bar" } : { type: "point", filled: true, size: 45, opacity: 1 }, encoding },
    ],
    config: {
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: { labelColor: ink, titleColor: ink, gridColor: faint, domainColor: faint, tickColor: faint, titleFontWeight: "normal" },
      legend: { labelColor: ink, titleColor: ink, titleFontWeight: "normal" },
    },
  };
  const embed = await charts();
  const box = make("div");
  place.replaceChildren(box);
  const { view: drawn } = await embed(box, spec, { actions: { export: true, source: false, compiled: false, editor: false }, ast: true, renderer: "canvas", tooltip: { theme: isDark() ? "dark" : "light" } });
  drawn.addEventListener("click", (_, item) => item?.datum?.row !== undefined && showDetail(view.experiment, item.datum.row));
}
document.addEventListener("theme", () => data && drawChart(matching()));

let table;
async function listRows(rows) {
  const DataTable = await tables();
  const { columns } = data;
  const many = (column) => new Set(rows.map((row) => columns[column][row])).size > 1;
  const listed = [...parametersOf().filter(many), ...LISTED];
  const text = DataTable.render.text().display;
  table?.destroy();
  const place = make("table", { class: "display compact" });
  const save = make("button", { type: "button", class: "save", click: () => saveRows(rows) }, `Save these ${rows.length} rows as CSV`);
  $("#explorer .rows").replaceChildren(save, make("div", { class: "scroll" }, place));
  table = new DataTable(place, {
    data: rows,
    deferRender: true,
    autoWidth: false,
    order: [],
    pageLength: 25,
    lengthMenu: [10, 25, 100, 1000],
    columns: listed.map((column) => ({
      title: text(column),
      className: isNumber(column) ? "dt-right" : "dt-left",
      data: (row, kind) => (kind === "display" ? text(String(shown(columns[column][row]))) : (columns[column][row] ?? "")),
    })),
    createdRow: (line, row) => {
      line.tabIndex = 0;
      line.dataset.row = row;
      const show = () => showDetail(view.experiment, row);
      line.addEventListener("click", show);
      line.addEventListener("keydown", (event) => event.key === "Enter" && show());
    },
  });
}

function saveRows(rows) {
  const { columns } = data;
  const names = Object.keys(columns);
  download(view.experiment, [names, ...rows.map((row) => names.map((name) => columns[name][row]))]);
}

/** Everything that was recorded with a row, and with its cell. */
async function showDetail(experiment, row) {
  const entry = (await rowsOfAll()).experiments[experiment];
  const { columns } = entry;
  const value = (column) => columns[column][row];
  const cell = ["machine", ...Object.keys(entry.parameters)];
  const same = columns.experiment.map((_, other) => other).filter((other) => cell.every((column) => columns[column][other] === value(column)));
  const statistic = (metric) => {
    const other = same.find((each) => columns.metric[each] === metric && columns.median[each] !== null);
    return other === undefined ? null : `${shown(columns.median[other])} ${columns.unit[other]} (median of ${columns.n[other]})`;
  };
  const list = (pairs) => make("dl", {}, ...pairs.filter(([, text]) => text !== null && text !== "").flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text instanceof Node ? text : String(text))]));
  const part = (title, ...content) => make("section", {}, make("h4", {}, title), ...content);
  const provenance = Object.keys(columns).slice(Object.keys(columns).indexOf("samples") + 1).filter((name) => !entry.details.includes(name));
  const samples = samplesOf(value("samples"));
  const command = entry.commands[entry.job[row]];
  open(
    $("#detail"),
    make("h3", {}, `${experiment}: ${value("metric")}`),
    make("p", {}, entry.metrics[value("metric")] ? `${entry.metrics[value("metric")]}.` : ""),
    part("Measured", list([
      ...["status", "message", "value"].map((name) => [name, value(name)]),
      ...["median", "mean", "std", "p20", "p80"].map((name) => [name, value(name) === null ? null : `${value(name)} ${value("unit")}`]),
      ["n", value("n")],
      ...entry.details.map((name) => [name, value(name)]),
    ])),
    part("Cell", list(cell.map((name) => [name, value(name)]))),
    ...(samples.length > 1 ? [part(`Samples, in order`, strip(samples), make("pre", { class: "samples" }, value("samples")))] : []),
    part("Machine during the cell", list([["SM clock", statistic("sm_clock")], ["power", statistic("power")], ["cell, from beginning to end", statistic("wall")]])),
    part("Origin", list(provenance.map((name) => [name, value(name)]))),
    part("Command", command ? copied(command) : make("p", {}, "No job of the present plan measures this cell.")),
    make("button", { type: "button", click: () => ($("#detail").close(), $("#viewer").close(), explore(experiment)) }, `Explore ${experiment}`),
  );
}

/** The numbers of a row's samples: "0.1 0.2*3" is one of 0.1 and three of 0.2. */
function samplesOf(text) {
  return (text ?? "").split(" ").filter(Boolean).flatMap((each) => {
    const [number, times] = each.split("*");
    return Array(Number(times ?? 1)).fill(Number(number));
  });
}

/** A small picture of samples, in order, from zero. */
function strip(samples) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("viewBox", "0 0 600 80");
  picture.setAttribute("class", "strip");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `${samples.length} samples from ${Math.min(...samples)} to ${Math.max(...samples)}`);
  const most = Math.max(...samples, 0) || 1;
  samples.forEach((sample, index) => {
    const dot = document.createElementNS(space, "circle");
    dot.setAttribute("cx", 5 + (590 * index) / Math.max(samples.length - 1, 1));
    dot.setAttribute("cy", 76 - (70 * sample) / most);
    dot.setAttribute("r", 2);
    picture.append(dot);
  });
  return picture;
}

function copied(command) {
  const copy = (event) => navigator.clipboard?.writeText(command).then(() => (event.target.textContent = "Copied"));
  return make("div", { class: "command" }, make("pre", {}, make("code", {}, command)), make("button", { type: "button", click: copy }, "Copy"));
}
