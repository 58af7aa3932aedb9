// The report's own part of the page: contents that follow scrolling, light and dark, figures, tables.

// Light and dark: a class, which the explorer's tables also use. The page's head sets it from the choice or the system.
const classes = document.documentElement.classList;
const isDark = () => classes.contains("dark");
function setDark(dark) {
  classes.toggle("dark", dark);
  document.dispatchEvent(new Event("theme"));
}
$("#theme").addEventListener("click", () => {
  setDark(!isDark());
  const asSystem = isDark() === matchMedia("(prefers-color-scheme: dark)").matches;
  try {
    if (asSystem) localStorage.removeItem("theme");
    else localStorage.setItem("theme", isDark() ? "dark" : "light");
  } catch {} // as above
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => setDark(matches));

// Contents: the current entry is marked, and visible.
const contents = $("#contents");
const entries = new Map(all("a", contents).map((link) => [link.hash.slice(1), link]));
const marks = [...entries.keys()].map((anchor) => document.getElementById(anchor));
function follow() {
  const line = scrollY + innerHeight / 4;
  const top = (mark) => mark.getBoundingClientRect().top + scrollY;
  const atEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  const reading = atEnd ? marks.at(-1) : (marks.findLast((mark) => top(mark) <= line) ?? marks[0]);
  for (const [anchor, link] of entries) {
    if (anchor !== reading?.id) link.removeAttribute("aria-current");
    else if (!link.hasAttribute("aria-current")) {
      link.setAttribute("aria-current", "location");
      contents.scrollTo({ top: link.offsetTop - contents.clientHeight / 3 });
    }
  }
}
addEventListener("scroll", follow, { passive: true });
addEventListener("resize", follow);
follow();

// On a phone the contents are behind a button.
function showContents(yes) {
  document.body.classList.toggle("contents-open", yes);
  $("#menu").setAttribute("aria-expanded", yes);
}
$("#menu").addEventListener("click", () => showContents(!document.body.classList.contains("contents-open")));
contents.addEventListener("click", (event) => event.target.closest("a") && showContents(false));
addEventListener("keydown", (event) => event.key === "Escape" && showContents(false));

// Figures: a click opens one large, with the values at the pointer.
const figures = once(async () => JSON.parse(await unpack("figures")));

const [DEEP, LIGHTER] = ["#0072b2", "#3b9bdc"]; // a blue too dark for a dark page

/** A figure's text in the current colours: in dark mode greys are inverted, and elements without colour are light. */
async function drawing(name) {
  const text = (await figures())[name];
  if (!isDark()) return text;
  const turned = (_, grey) => `#${Math.round(0xe6 - (parseInt(grey, 16) * (0xe6 - 0x17)) / 0xff).toString(16).repeat(3)}`;
  return text.replace(/#([0-9a-f]{2})\1\1\b/gi, turned).replaceAll(DEEP, LIGHTER).replace("<svg ", '<svg fill="#e6e6e6" ');
}

async function drawFigures() {
  for (const image of all("img[data-figure]")) {
    URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(new Blob([await drawing(image.dataset.figure)], { type: "image/svg+xml" }));
  }
}
document.addEventListener("theme", drawFigures);
drawFigures();
for (const image of all("img[data-figure]")) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.addEventListener("click", () => enlarge(image));
  image.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), enlarge(image)));
}

async function enlarge(image) {
  const picture = new DOMParser().parseFromString(await drawing(image.dataset.figure), "image/svg+xml").documentElement;
  const values = JSON.parse($("#values", picture)?.textContent ?? "[]");
  picture.removeAttribute("width");
  picture.removeAttribute("height");
  const tip = make("output", { class: "tip", hidden: true });
  const spot = document.createElementNS(picture.namespaceURI, "circle");
  spot.setAttribute("class", "spot");
  spot.setAttribute("r", 4);
  picture.append(spot);
  const tell = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
    const distance = ([x, y]) => Math.hypot(x - at.x, y - at.y);
    const nearest = values.reduce((best, each) => (distance(each) < distance(best) ? each : best), [1e9, 1e9]);
    tip.hidden = !(distance(nearest) < 30);
    spot.style.visibility = tip.hidden ? "hidden" : "visible";
    if (tip.hidden) return;
    spot.setAttribute("cx", nearest[0]);
    spot.setAttribute("cy", nearest[1]);
    tip.textContent = nearest[2];
    const frame = picture.parentElement;
    const { left, top } = frame.getBoundingClientRect();
    const edge = frame.scrollLeft + frame.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(0, Math.min(event.clientX - left + frame.scrollLeft + 14, edge))}px`;
    tip.style.top = `${event.clientY - top + 16}px`;
  };
  for (const kind of ["pointermove", "pointerdown"]) picture.addEventListener(kind, tell);
  const caption = image.closest("figure").querySelector("figcaption").cloneNode(true);
  const hint = values.length ? make("p", { class: "hint" }, "Point at a mark for its value.") : null;
  open($("#viewer"), make("div", { class: "picture" }, picture, tip), caption, ...(hint ? [hint] : []));
}

// Tables: numbers aligned right, sorted by a click on a title, searched, saved; a click on a number finds its row.
const FEW_ROWS = 8;

for (const box of all("article .scroll")) {
  const table = $("table", box);
  const align = box.dataset.align.split(" ");
  for (const row of all("tr", table)) {
    let column = 0;
    for (const cell of row.cells) {
      if (cell.colSpan === 1 && align[column] === "right") cell.classList.add("number");
      if (cell.colSpan > 1 && cell.tagName === "TH") cell.classList.add("over");
      column += cell.colSpan;
    }
  }
  const body = [...table.tBodies].flatMap((part) => [...part.rows]);
  const name = table.closest("[id]")?.id || "table";
  const tools = make("div", { class: "tools" });
  if (body.length > FEW_ROWS) {
    tools.append(
      make("input", {
        type: "search",
        placeholder: "Filter rows",
        "aria-label": "Filter rows",
        input: (event) => {
          const wanted = event.target.value.toLowerCase().split(/\s+/);
          for (const row of body) {
            const text = row.textContent.toLowerCase();
            row.hidden = !wanted.every((word) => text.includes(word));
          }
        },
      }),
    );
  }
  const save = () => {
    const spread = (row) => [...row.cells].flatMap((cell) => [cell.textContent.trim(), ...Array(cell.colSpan - 1).fill("")]);
    download(name, [...table.rows].filter((row) => !row.hidden).map(spread));
  };
  tools.append(make("button", { type: "button", title: "Save this table as CSV", click: save }, "CSV"));
  box.before(tools);
  const plain = body.every((row) => row.cells.length === align.length);
  const titles = [...(table.tHead?.rows ?? [])].findLast((row) => row.cells.length === align.length); // a heading may follow
  if (plain && titles) {
    for (const [column, title] of [...titles.cells].entries()) sortable(table, title, column);
  }
  const numbers = all("td.number", table).filter((cell) => /\d/.test(cell.textContent));
  for (const cell of numbers) Object.assign(cell, { tabIndex: -1, title: "Where does this number come from?" });
  if (numbers.length || box.scrollWidth > box.clientWidth) box.tabIndex = 0; // arrow keys move between numbers, or scroll
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td[title]");
    if (cell && getSelection().isCollapsed) lookUp(cell);
  });
  box.addEventListener("keydown", (event) => numbers.length && move(event, numbers));
}

/** Move from number to number of a table with the arrow keys; Enter looks one up. */
function move(event, numbers) {
  const at = event.target.closest("td");
  const way = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (at && event.key === "Enter") return lookUp(at);
  if (!way) return;
  event.preventDefault();
  const place = (cell) => [cell.parentElement.rowIndex, cell.cellIndex];
  const [row, column] = at ? place(at) : [0, 0];
  const ahead = numbers.filter((cell) => {
    const [down, right] = [place(cell)[0] - row, place(cell)[1] - column];
    return !at || (way[0] ? down * way[0] > 0 && right === 0 : right * way[1] > 0 && down === 0);
  });
  const distance = (cell) => Math.abs(place(cell)[0] - row) + Math.abs(place(cell)[1] - column);
  ahead.sort((one, other) => distance(one) - distance(other))[0]?.focus();
}

// Each named figure and table has a link to itself, like headings.
for (const figure of all("article figure")) {
  const anchor = figure.id || figure.closest("[id]:not(main)")?.id;
  if (anchor) $("figcaption", figure)?.append(make("a", { class: "anchor", href: `#${anchor}`, "aria-label": "Link to this" }));
}

function sortable(table, title, column) {
  title.tabIndex = 0;
  title.classList.add("sortable");
  const sort = () => {
    const down = title.getAttribute("aria-sort") === "ascending";
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => numeric(row.cells[column].textContent);
    const sign = down ? -1 : 1;
    const rows = [...table.tBodies].flatMap((part) => [...part.rows]);
    rows.sort((one, other) => {
      const [left, right] = [key(one), key(other)];
      const [a, b] = [parseFloat(left), parseFloat(right)];
      if (Number.isNaN(a) !== Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1; // what was not measured comes last
      return sign * (Number.isNaN(a) ? left.localeCompare(right) : a - b);
    });
    table.tBodies[0].append(...rows);
  };
  title.addEventListener("click", sort);
  title.addEventListener("keydown", (event) => event.key === "Enter" && sort());
}

// A formula within a line may continue on the next one before a relation.
for (const formula of all("math:not([display])")) {
  for (const relation of [...formula.children].slice(1).reverse()) {
    if (!/^[=<>≤≥≈]$/.test(relation.textContent)) continue;
    const rest = formula.cloneNode();
    while (relation.nextSibling) rest.append(relation.nextSibling);
    relation.setAttribute("form", "infix");
    rest.prepend(relation);
    formula.after(make("wbr"), rest);
  }
}
