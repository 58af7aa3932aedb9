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

// Figures: a click opens one large.
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

function enlarge(image) {
  const caption = $("figcaption", image.closest("figure")).cloneNode(true);
  open($("#viewer"), make("div", { class: "picture" }, image.cloneNode()), caption);
}

// Tables: numbers aligned right; a click on one finds its row.
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
