const order = (a, b) => { const x = parseFloat(a), y = parseFloat(b);
  return isNaN(x) || isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y; };
const units = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const value = cell => { const words = cell.textContent.replaceAll("\u2212", "-").replace("< ", "").trim();
  const [count, unit] = words.split(" "); return unit in units ? String(count * units[unit]) : words; };
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const sort = at => { const down = heads[at].ariaSort === "ascending";
    heads.forEach(head => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(value(a.cells[at]), value(b.cells[at])));
    body.append(...(down ? rows.reverse() : rows)); };
  heads.forEach((head, at) => { head.addEventListener("click", () => sort(at));
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(at); }); });
}
