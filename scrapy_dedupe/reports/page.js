"use strict";
// The page works without this script. The script shows the label of the focused mark of a chart, moves between marks with
// the arrow keys, sorts tables, and expands all details for printing.
const tip = document.getElementById("tip");
const isMark = (element) => element instanceof SVGElement && element.hasAttribute("tabindex");

function showTip() {
  const mark = document.activeElement;
  tip.hidden = !isMark(mark);
  if (tip.hidden) return;
  tip.textContent = mark.getAttribute("aria-label");
  const at = mark.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const above = at.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 0 ? above : at.bottom + 8}px`;
}
document.addEventListener("focusin", showTip);
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("scroll", () => { if (!tip.hidden) showTip(); }, { passive: true });
document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (key === "Escape") tip.hidden = true;
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  if (!isMark(target) || !(key in steps)) return;
  event.preventDefault();
  const marks = [...target.closest("figure svg").querySelectorAll("[tabindex]")];
  const to = Math.max(0, Math.min(marks.length - 1, marks.indexOf(target) + steps[key]));
  target.setAttribute("tabindex", "-1");
  marks[to].setAttribute("tabindex", "0");
  marks[to].focus();
});

for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const column = head.cellIndex;
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const isDown = head.getAttribute("aria-sort") === (head.matches(".n") ? "descending" : "ascending");
    const sign = head.matches(".n") === isDown ? 1 : -1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const order = head.matches(".n")
      ? (a, b) => value(a) - value(b)
      : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
    const rows = [...body.rows].sort((a, b) => sign * order(a, b));
    body.append(...rows);
  });
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of closed) one.open = false;
});
