// All rows of all experiments: a chart and a table of the filtered ones. The page's address stores what is
// shown, as #explorer?experiment=flash&metric=forward&...; with row=7 it opens that row.

const LINK = "#explorer?";
const MOST_CHOICES = 60; // a column with more values is not preferred as colour, and not filtered at first
const STATISTICS = ["median", "mean", "std", "p20", "p80", "n"];
const LISTED = ["metric", "unit", "n", "mean", "std", "median", "p20", "p80", "status"];

const rowsOfAll = once(async () => {
  const experiments = JSON.parse(await unpack("rows"));
  for (const { columns, parameters } of Object.values(experiments)) {
    for (const name of [...Object.keys(parameters), ...STATISTICS]) columns[name] = withNumbers(columns[name]);
  }
  return experiments;
});
const tables = once(async () => {
  document.head.append(make("style", {}, await unpack("tables-style")));
  return (await library("tables")).default;
});

const form = $("#explorer form");
const filters = $("#explorer .filters");
const choice = () => Object.fromEntries(new FormData(form));
let data, table, started; // the experiment's entry, its DataTable, and whether anything was asked for

/** A column's texts as numbers if all of them are; an empty one is null. */
function withNumbers(column) {
  return column.every((text) => !isNaN(text)) ? column.map((text) => (text === "" ? null : Number(text))) : column;
}

const isNumber = (column) => data.columns[column].some((value) => typeof value === "number");
const valuesOf = (column, rows) => [...new Set(rows.map((row) => data.columns[column][row]))];
const described = () => ["machine", ...Object.keys(data.parameters), ...data.details];
const varying = (rows) => described().filter((column) => valuesOf(column, rows).length > 1);
const has = (column, row, wanted) => !wanted || data.columns[column][row] === wanted;
const rowsOf = (metric) =>
  [...data.columns.metric.keys()].filter((row) => has("metric", row, metric) && has("machine", row, choice().machine));

/** Show the state in an address, with defaults for missing parts. */
async function show(wanted) {
  started = true;
  const experiments = await rowsOfAll();
  const names = Object.keys(experiments);
  if (!names.length) return void ($("#explorer .count").textContent = "No row has been measured.");
  offer("experiment", names, wanted.experiment);
  data = experiments[choice().experiment];
  const machines = valuesOf("machine", [...data.columns.machine.keys()]);
  offer("machine", ["", ...machines], wanted.machine ?? "");
  form.elements.machine.parentElement.hidden = machines.length < 2;
  const metrics = valuesOf("metric", rowsOf("")).sort();
  offer("metric", ["", ...metrics], wanted.metric ?? mainMetric(metrics));
  const rows = rowsOf(choice().metric);
  const { filter, search, row, ...chart } = "filter" in wanted ? wanted : { ...usual(rows), ...wanted };
  offer("x", ["metric", ...varying(rows)], chart.x);
  offer("y", STATISTICS, chart.y);
  offer("colour", ["", "metric", ...varying(rows)], chart.colour);
  offer("base", ["", ...(chart.colour ? valuesOf(chart.colour, rows) : [])], chart.base);
  for (const name of ["logX", "logY"]) form.elements[name].checked = name in chart;
  await list(rows, JSON.parse(filter), search);
  if (row) await showDetail(choice().experiment, Number(row));
}

function offer(name, values, chosen) {
  const none = { metric: "all (no chart)", machine: "all" }[name] ?? "none";
  const options = values.map((value) => make("option", { value, selected: value === chosen }, value || none));
  form.elements[name].replaceChildren(...options);
}

/** An experiment's main metric, if it has numbers. */
function mainMetric(metrics) {
  const hasNumbers = (metric) => rowsOf(metric).some((row) => data.columns.median[row] !== null);
  const measured = metrics.filter((metric) => !["wall", "cell"].includes(metric) && hasNumbers(metric));
  return measured.includes(data.timed) ? data.timed : (measured[0] ?? "");
}

/** The initial view: the longest numeric grid as x, a name as colour, all else at its most frequent setting. */
function usual(rows) {
  const many = (column) => valuesOf(column, rows).length;
  const ranked = varying(rows).sort((one, other) => many(other) - many(one));
  const few = ranked.filter((column) => many(column) <= MOST_CHOICES && column !== "machine");
  let x = ranked.find(isNumber) ?? ranked[0] ?? "metric";
  let colour = few.find((column) => column !== x && !isNumber(column)) ?? ranked.find((column) => column !== x) ?? "";
  const fixed = few.filter((column) => ![x, colour].includes(column));
  const settings = Object.groupBy(rows, (row) => JSON.stringify(fixed.map((column) => data.columns[column][row])));
  const [setting, left] = Object.entries(settings).reduce((most, each) => (each[1].length > most[1].length ? each : most));
  if (colour && valuesOf(x, left).length < 2) [x, colour] = [colour, ""]; // one place on the axis: names make better bars
  const criteria = JSON.parse(setting).map((value, index) => criterion(fixed[index], value));
  const logarithmic = { ...(span(x, rows) >= 8 && { logX: "on" }), ...(span("median", left) > 100 && { logY: "on" }) };
  return { x, colour, y: "median", ...logarithmic, filter: JSON.stringify({ logic: "AND", criteria }) };
}

/** The one value of a column, as SearchBuilder writes it. */
function criterion(column, value) {
  const condition = value === null || value === "" ? { condition: "null" } : { condition: "=", value: [String(value)] };
  return { data: column, type: isNumber(column) ? "num" : "string", ...condition };
}

/** The largest of a column's numbers over the smallest; 1 if not all are above zero. */
function span(column, rows) {
  const numbers = valuesOf(column, rows).filter((value) => typeof value === "number");
  const least = Math.min(...numbers);
  return least > 0 && numbers.length ? Math.max(...numbers) / least : 1;
}

/** List rows in a DataTable with filters, a search, a choice of columns and a button to save. */
async function list(rows, filter, search = "") {
  const DataTable = await tables();
  const text = DataTable.render.text().display;
  const chosen = [...described(), ...LISTED];
  const columns = [...new Set([...chosen, ...Object.keys(data.columns)])].map((name) => ({
    name,
    title: text(name),
    type: isNumber(name) ? "num" : "string",
    visible: LISTED.includes(name),
    searchable: chosen.includes(name),
    data: (row, kind) => (kind === "display" ? text(String(shown(data.columns[name][row]))) : (data.columns[name][row] ?? "")),
  }));
  const recorded = { orthogonal: "export", stripHtml: false, decodeEntities: false, stripNewlines: false, trim: false };
  const save = { extend: "csv", text: "Save as CSV", filename: choice().experiment, exportOptions: recorded };
  table?.destroy();
  const place = make("table", { class: "display compact" });
  $("#explorer .rows").replaceChildren(place);
  table = new DataTable(place, {
    data: rows,
    columns,
    deferRender: true,
    autoWidth: false,
    order: [],
    pageLength: 25,
    search: { search },
    language: { searchBuilder: { title: "" } },
    layout: { topStart: ["pageLength", { buttons: [{ extend: "colvis", text: "Columns" }, save] }] },
    createdRow: (line, row) => {
      const detail = () => showDetail(choice().experiment, row);
      Object.assign(line, { tabIndex: 0, onclick: detail, onkeydown: (event) => event.key === "Enter" && detail() });
    },
  });
  new DataTable.SearchBuilder(table, { columns: [...chosen.keys()], preDefined: filter });
  $("div", filters).replaceChildren(table.searchBuilder.container()[0]);
  table.on("search", () => (remember(), draw()));
  await draw();
}

/** Store the view in the page's address, so that it can be shared; each choice is a step in the browser's history. */
function remember(step = false) {
  const filter = JSON.stringify(table.searchBuilder.getDetails());
  const address = LINK + new URLSearchParams({ ...choice(), search: table.search(), filter });
  history[step ? "pushState" : "replaceState"](null, "", address);
}

/** A condition of SearchBuilder, or a group of them, in words; empty for none. */
function inWords({ criteria = [], logic, data, condition, value }) {
  const words = { null: "is empty", "!null": "is not empty" }[condition] ?? `${condition} ${value?.join(" and ")}`;
  if (data) return `${data} ${words}`;
  return criteria.map((each) => (each.criteria ? `(${inWords(each)})` : inWords(each))).join(logic === "OR" ? " or " : ", ");
}

/** Draw the filtered rows, describe them, and show the columns in which they differ. */
async function draw() {
  const { metric, y } = choice();
  const rows = table.rows({ search: "applied", order: "index" }).data().toArray();
  const meaning = data.metrics[metric] ? `${data.metrics[metric]}.` : "";
  $("#explorer .count").textContent = `${rows.length} of ${data.columns.metric.length} rows. ${meaning}`;
  $("summary", filters).textContent = `Filters: ${inWords(table.searchBuilder.getDetails()) || "none"}`;
  table.columns(varying(rows).map((name) => `${name}:name`)).visible(true);
  const measured = rows.filter((row) => data.columns[y][row] !== null);
  if (metric && measured.length) {
    $("#explorer .chart").append(make("p", { class: "reason" }, "Drawing …"));
    return drawChart(measured);
  }
  const reason = metric ? "These rows have no number to draw." : "Choose a metric to draw.";
  $("#explorer .chart").replaceChildren(make("p", { class: "reason" }, reason));
}

form.addEventListener("change", async ({ target }) => {
  const { experiment, metric, machine, colour, x, y } = choice();
  if (target.name === "experiment") await show({ experiment });
  else if (["metric", "machine"].includes(target.name)) await show({ experiment, metric, machine });
  else {
    if (target.name === "colour") offer("base", ["", ...(colour ? valuesOf(colour, rowsOf(metric)) : [])], "");
    await draw();
  }
  remember(true);
});
filters.addEventListener("toggle", () => dispatchEvent(new Event("resize"))); // SearchBuilder places its parts by their sizes
document.addEventListener("theme", () => table && draw());
new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && !started && show({})).observe($("#explorer"));

/** Show the state in the page's address. */
function arrive() {
  if (!location.hash.startsWith(LINK)) return;
  for (const dialog of all("dialog[open]")) dialog.close();
  show(Object.fromEntries(new URLSearchParams(location.hash.slice(LINK.length))));
  $("#explorer").scrollIntoView();
}
addEventListener("hashchange", arrive);
arrive();
