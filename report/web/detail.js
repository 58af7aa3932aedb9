// Everything recorded with a row and with its cell, and the command that measures it again.

async function showDetail(experiment, row) {
  const { columns, parameters, details, metrics, commands, job } = (await rowsOfAll())[experiment];
  const value = (column) => columns[column][row];
  const [metric, unit, samples] = ["metric", "unit", "samples"].map(value);
  const cell = ["machine", ...Object.keys(parameters)];
  const names = Object.keys(columns);
  const pairs = (some) => some.map((name) => [name, shown(value(name))]);
  const measured = STATISTICS.filter((name) => value(name) !== null);
  const statistics = measured.map((name) => [name, `${shown(value(name))} ${name === "n" ? "" : unit}`]);
  const ofCell = [...columns.metric.keys()].filter(
    (other) => cell.every((name) => columns[name][other] === value(name)) && !details.some((name) => columns[name][other]),
  );
  const medians = ofCell.map((other) => [columns.metric[other], `${shown(columns.median[other])} ${columns.unit[other]}`.trim()]);
  const address = LINK + new URLSearchParams({ experiment, metric });
  const link = (text, href) => make("a", { href }, text);
  const links = [link("Link to this row", `${address}&row=${row}`), " · ", link("Explore this metric", address)];
  const chart = make("div");
  const command = commands[job[row]];
  open(
    $("#detail"),
    make("h3", {}, `${experiment}: ${metric}`),
    make("p", {}, metrics[metric] ? `${metrics[metric]}. ` : "", ...links),
    ...part("Measured", [...pairs(["status", "message", "value"]), ...statistics, ...pairs(details)]),
    ...part("Cell", pairs(cell)),
    ...(samples ? [make("h4", {}, "Samples, in order"), chart, make("pre", { class: "samples" }, samples)] : []),
    ...part("Medians of the cell", medians),
    ...part("Origin", pairs(names.slice(names.indexOf("samples") + 1).filter((name) => !details.includes(name)))),
    make("h4", {}, "Command"),
    command ? copied(command) : make("p", {}, "No job of the current plan measures this cell."),
  );
  if (samples) await drawSamples(chart, samplesOf(samples), unit);
}

/** A heading, and names with their values, if not empty. */
function part(title, entries) {
  const filled = entries.filter(([, text]) => text !== "");
  const items = filled.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
  return [make("h4", {}, title), make("dl", {}, ...items)];
}

/** The numbers of a row's samples: "0.1 0.2*3" is one of 0.1 and three of 0.2. */
function samplesOf(text) {
  return text.split(" ").flatMap((each) => {
    const [number, times = 1] = each.split("*");
    return Array(Number(times)).fill(Number(number));
  });
}

function copied(command) {
  const copy = (event) => navigator.clipboard?.writeText(command).then(() => (event.target.textContent = "Copied"));
  const text = make("pre", {}, make("code", {}, command));
  return make("div", { class: "command" }, text, make("button", { type: "button", click: copy }, "Copy"));
}
