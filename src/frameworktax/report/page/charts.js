// The pictures: fills their specifications, with the points that the page has where rows are named.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const { axes, charts, colours, columns, fields, lines, templates } = ft.data;
  const MANY = 1500;

  function cell(name, row) {
    const column = columns[name];
    if (Array.isArray(column)) return column[row];
    return column.at[row] === null ? null : column.of[column.at[row]];
  }

  const names = (picture) => [...new Set(picture.rows.map((row) => cell("runtime", row)))];

  // As ``drawn`` of charts.py, but without a legend of runtimes: the page has buttons.
  function filled(picture) {
    const runtimes = names(picture);
    return ft.fill(templates[picture.template], {
      points: picture.rows.map((row) => Object.fromEntries(fields.map((f) => [f, cell(f, row)]))),
      runtimes,
      colours: runtimes.map((name) => colours[name]),
      legend: null,
      ...picture.values,
    });
  }

  // One button a runtime in place of a legend: with a keyboard too. None pressed shows all.
  function chips(chart) {
    chart.alone = new Set();
    chart.chips?.remove();
    chart.chips = ft.element("p", { className: "chips" });
    chart.chips.setAttribute("role", "group");
    chart.chips.setAttribute("aria-label", "Runtimes to see alone");
    for (const name of names(chart.picture)) {
      const swatch = ft.element("i");
      swatch.style.background = colours[name];
      const chip = ft.element("button", { type: "button" }, swatch, name);
      chip.setAttribute("aria-pressed", "false");
      chip.addEventListener("click", () => {
        const on = chip.getAttribute("aria-pressed") !== "true";
        chip.setAttribute("aria-pressed", String(on));
        chart.alone[on ? "add" : "delete"](name);
        isolate(chart);
      });
      chart.chips.append(chip);
    }
    chart.place.before(chart.chips);
  }

  function isolate(chart) {
    if (chart.alone?.size || chart.view.signal("isolate").length) {
      chart.view.signal("isolate", [...chart.alone]).run();
    }
  }

  function add(place, picture) {
    const isLine = picture.template === "latency";
    const chart = ft.add(place, () => filled(chart.picture), isLine ? isolate : null,
      picture.rows.length > MANY);
    chart.picture = picture;
    if (isLine) chips(chart);
    return chart;
  }

  function options(select, texts) {
    select.replaceChildren(...texts.map(([value, text]) =>
      ft.element("option", { value, textContent: text })));
  }

  // Any axis, any line: two lists to choose from.
  function explorer(place) {
    const axis = document.getElementById("explore-axis");
    const which = document.getElementById("explore-line");
    const of = (name) => lines.map((line, i) => [i, line]).filter(([, line]) => line.axis === name);
    const some = Object.keys(axes).filter((name) => of(name).length);
    options(axis, some.map((name) => [name, axes[name].x_title]));
    axis.value = some.find((name) => name !== "batch") ?? some[0];
    const refill = () => options(which, of(axis.value).map(([i, line]) => [i, line.title]));
    refill();
    const chart = add(place, lines[Number(which.value)]);
    const redraw = () => {
      chart.picture = lines[Number(which.value)];
      chips(chart);
      ft.draw([chart]);
    };
    axis.addEventListener("change", () => { refill(); redraw(); });
    which.addEventListener("change", redraw);
  }

  for (const [id, picture] of Object.entries(charts)) {
    const place = document.getElementById(id);
    if (place) add(place, typeof picture === "number" ? lines[picture] : picture);
  }
  const explore = document.getElementById("explore");
  if (explore) ft.later(() => explorer(explore));
  window.frameworktax = { ...window.frameworktax, cell, filled };
  ft.open();
})();
