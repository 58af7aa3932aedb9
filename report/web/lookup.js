// From a number in a table to the rows that it may come from: those that print the same in its unit.

// Units of each quantity, relative to one of them. Any other unit stands for itself; a share may be recorded without a unit.
const QUANTITIES = [
  { s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6 },
  { B: 1, MB: 1e6, GB: 1e9, MiB: 2 ** 20, GiB: 2 ** 30 },
  { "": 1, share: 1, "%": 1e-2 },
  { J: 1, mJ: 1e-3 },
];
const UNIT = /(?:^| \/ |\()(×|MHz|W|GB\/s|TFLOP\/s|[mµ]?s|[MG]i?B|m?J|%)(?= |\)|$)/;
const UNITS_IN_CAPTION = /(?<=, | in | and )(?:[mµ]?s|[MG]i?B)(?=[.,; ]|$)/g;
const MOST_CANDIDATES = 12;

/** A table's text with numbers as JavaScript writes them. */
const numeric = (text) => text.replaceAll("−", "-").replace(/(?<=\d)[\u202f,](?=\d{3})/g, "").trim();

/** The factor that converts a number from one unit to another; undefined if they measure different quantities. */
function conversion(from, to) {
  const quantity = QUANTITIES.find((units) => from in units && to in units);
  return quantity ? quantity[from] / quantity[to] : from === to ? 1 : undefined;
}

/** A number in a table, and its description there. */
function placeOf(cell) {
  const table = cell.closest("table");
  const texts = (cells) => cells.map((each) => numeric(each.textContent));
  const row = cell.parentElement;
  const heading = [...table.rows].slice(0, row.rowIndex).findLast((line) => line.cells.length === 1 && line.cells[0].colSpan > 1);
  const titles = texts(titlesOf(cell)).reverse(); // the nearest first
  const labels = texts([row.cells[0], ...titlesOf(row.cells[0])]);
  const caption = $("figcaption", cell.closest("figure") ?? table)?.textContent ?? "";
  const [number, decimals, unit] = numeric(cell.textContent).match(/-?\d+(?:\.(\d+))?(?:\s?([^\s\d.,;±–()*-]+))?/);
  const known = (text) => text.match(UNIT)?.[1];
  const stated = [unit, ...titles.map((text) => known(text) ?? text.match(/ \/ (\S+)$/)?.[1]), ...labels.map(known)].find(Boolean);
  return {
    number,
    digits: decimals?.length ?? 0,
    units: stated ? [stated] : (caption.match(UNITS_IN_CAPTION) ?? [""]),
    titles: titles.map((text) => text.replace(/ \/ \S+$| \(\S+\)$/, "").replaceAll(" ", "_")),
    texts: [...texts([...row.cells]), ...titles, ...(heading ? texts([...heading.cells]) : [])],
    caption,
  };
}

/** The experiments of a table: the one named in a line, or those used by its section. */
function experimentsOf(table, { texts }, experiments) {
  const consulted = sectionOf(table, all("[data-experiments]")).map(({ dataset }) => dataset.experiments.split(" "));
  const own = Object.keys(experiments).filter((name) => !consulted.length || consulted[0].includes(name));
  const named = own.filter((name) => texts.some((text) => text.split(" ")[0] === name));
  return named.length ? named : own;
}

/** The rows whose median or mean prints like a number in its unit, the best matches of its place first. */
function candidates(cell, experiments) {
  const place = placeOf(cell);
  const words = new Set([...place.texts, place.caption].join(" ").split(/[\s,;:()]+/));
  const named = new Set(); // metrics that a title names
  const found = [];
  for (const experiment of experimentsOf(cell.closest("table"), place, experiments)) {
    const { columns, parameters, details } = experiments[experiment];
    if (place.titles[0] in parameters) continue; // a setting, not a measurement
    for (const [row, metric] of columns.metric.entries()) {
      const factors = place.units.map((unit) => conversion(columns.unit[row], unit)).filter(Boolean);
      if (factors.length && place.titles.includes(metric)) named.add(metric);
      const prints = (value) => value !== null && factors.some((factor) => (value * factor).toFixed(place.digits) === place.number);
      const statistic = ["median", "mean"].find((name) => prints(columns[name][row]));
      if (!statistic) continue;
      const shared = [...Object.keys(parameters), ...details, "metric"].filter((name) => {
        const value = String(columns[name][row] ?? "");
        return value && (place.texts.includes(value) || words.has(value));
      });
      found.push({ experiment, row, metric, statistic, score: shared.length });
    }
  }
  const fitting = named.size ? found.filter(({ metric }) => named.has(metric)) : found;
  return { place, found: fitting.sort((one, other) => other.score - one.score) };
}

/** Show the rows that a number of the report may come from. */
async function lookUp(cell) {
  open($("#detail"), make("p", { class: "reason" }, "Loading rows …"));
  const experiments = await rowsOfAll();
  const { place, found } = candidates(cell, experiments);
  const best = found.slice(0, MOST_CANDIDATES);
  const lines = best.map(({ experiment, row, metric, statistic }) => {
    const { columns, parameters, details } = experiments[experiment];
    const many = (name) => new Set(columns[name]).size > 1;
    const told = [...Object.keys(parameters), ...details].filter(many).map((name) => `${name} ${columns[name][row]}`).join(", ");
    const text = `${metric}, ${statistic} ${shown(columns[statistic][row])} ${columns.unit[row]}`;
    return make("li", {}, make("button", { type: "button", click: () => showDetail(experiment, row) }, make("strong", {}, text), make("span", {}, told)));
  });
  const unit = place.units.join(" or ");
  const heading = make("h3", {}, `Possible sources of ${place.number}${unit && ` ${unit}`}`);
  const none = make("p", {}, unit ? "No row has this number: it is computed." : "The table states no unit, and no row without a unit has this number.");
  const about = make("p", {}, `Rows whose median or mean prints like this, best match first${found.length > best.length ? ` (${best.length} of ${found.length})` : ""}.`);
  open($("#detail"), heading, ...(best.length ? [about, make("ul", { class: "candidates" }, ...lines)] : [none]));
}

/** The titles above a table's cell; a line of one cell is only the heading of the lines below it. */
function titlesOf(cell) {
  const start = (each) => [...each.parentElement.cells].slice(0, each.cellIndex).reduce((sum, before) => sum + before.colSpan, 0);
  const covers = (title) => start(title) <= start(cell) && start(cell) < start(title) + title.colSpan;
  return all("thead th:not(:only-child)", cell.closest("table")).filter(covers);
}

/** The elements in the same section as a place: between the same two headings. */
function sectionOf(place, elements) {
  const headings = all("article h2, article h3");
  const before = (element) => headings.findLast((heading) => heading.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING);
  return elements.filter((element) => before(element) === before(place));
}
