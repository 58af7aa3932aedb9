// Functions shared by the other scripts. All files here form one module, in alphabetical order.

const $ = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with attributes (functions become listeners) and children; text is never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Text that is compressed in the page. */
async function unpack(name) {
  const bytes = Uint8Array.from(atob($(`#data-${name}`).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** The result of `load`, loaded at the first call. */
function once(load) {
  let loaded;
  return () => (loaded ??= load());
}

/** A script in the page, as a module. */
async function library(name) {
  const address = URL.createObjectURL(new Blob([await unpack(name)], { type: "text/javascript" }));
  return import(address);
}

/** A number with enough digits to read. */
function shown(value) {
  if (typeof value !== "number") return value ?? "";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4 ? value.toExponential(3) : String(+value.toPrecision(5));
}

/** Open a dialog with new content; it closes by its button, Escape or a click outside it. */
function open(dialog, ...content) {
  $(".content", dialog).replaceChildren(...content);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
for (const dialog of all("dialog")) {
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
