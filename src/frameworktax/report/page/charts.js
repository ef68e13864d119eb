// Latency along any axis, and all points at once: fills latency.json and operations.json with the
// points that the page has, as charts.py does for paper. A test compares the two.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const { columns, slices, templates, looks, axes, shapes, colours } = ft.data;
  const UNKNOWN = "not known";
  const MANY = 1500;

  function fill(template, values) {
    if (Array.isArray(template)) return template.map((item) => fill(item, values));
    if (template && typeof template === "object") {
      return Object.fromEntries(Object.entries(template).map(([k, v]) => [k, fill(v, values)]));
    }
    return typeof template === "string" && template.startsWith("@") ?
      values[template.slice(1)] : template;
  }

  function cell(name, row) {
    const column = columns[name];
    if (Array.isArray(column)) return column[row];
    return column.at[row] === null ? null : column.of[column.at[row]];
  }

  const names = (slice) => [...new Set(slice.rows.map((row) => cell("runtime", row)))];

  function interval(value, low, high) {
    if (low === value && value === high) return `${ft.ms(value)} (no interval)`;
    return `${ft.ms(value)} (${ft.ms(low)} to ${ft.ms(high)})`;
  }

  function point(row, axis) {
    const [value, low, high] = ["", "_low", "_high"].map((end) => cell(`latency_ns${end}`, row));
    const tax = cell("tax_share", row);
    return {
      runtime: cell("runtime", row),
      x: cell(axis, row),
      latency: value / 1e6,
      low: (low > 0 ? low : value) / 1e6, // a log axis has no zero
      high: high / 1e6,
      regime: cell("regime", row) ?? UNKNOWN,
      latency_text: `${interval(value, low, high)} ms`,
      sample_text: ft.duration(value / cell("batch", row)),
      tax_text: tax === null ? "not measured" : `${(100 * tax).toFixed(0)} %`,
    };
  }

  function latency(slice, wide) {
    const points = slice.rows.map((row) => point(row, slice.axis));
    const runtimes = names(slice);
    const regimes = Object.keys(shapes).filter((r) => points.some((p) => p.regime === r));
    const last = (name) => points.findLast((p) => p.runtime === name).x;
    const size = wide ? "wide" : "narrow";
    return fill(templates.latency[size], {
      ...axes[slice.axis],
      ...looks[size],
      points,
      bands: slice.bands,
      ends: runtimes.map((runtime, i) => ({ runtime, x: last(runtime), latency: slice.ends[i] })),
      free: slice.free ? [{ x: slice.free[0], text: slice.free[1] }] : [],
      x_domain: [slice.x[0], slice.x[wide ? 2 : 1]],
      x_ticks: [...new Set(points.map((p) => p.x))].sort((a, b) => a - b),
      y_domain: slice.y,
      runtimes,
      colours: runtimes.map((name) => colours[name]),
      regimes,
      shapes: regimes.map((name) => shapes[name]),
    });
  }

  // One button a runtime in place of a legend: with a keyboard too. None pressed shows all.
  function chips(chart, runtimes) {
    chart.alone = new Set();
    chart.chips?.remove();
    chart.chips = ft.element("p", { className: "chips" });
    chart.chips.setAttribute("role", "group");
    chart.chips.setAttribute("aria-label", "Runtimes to see alone");
    for (const name of runtimes) {
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

  function addLatency(place, slice) {
    const chart = ft.add(place, (wide) => latency(chart.slice, wide), isolate);
    chart.slice = slice;
    chips(chart, names(slice));
    return chart;
  }

  function options(select, texts) {
    select.replaceChildren(...texts.map(([value, text]) =>
      ft.element("option", { value, textContent: text })));
  }

  // Any axis, any line: two lists to choose from.
  function explorer(place) {
    const axis = document.getElementById("explore-axis");
    const which = document.getElementById("explore-slice");
    const of = (name) => slices.map((s, i) => [i, s]).filter(([, s]) => s.axis === name);
    const some = Object.keys(axes).filter((name) => of(name).length);
    options(axis, some.map((name) => [name, axes[name].x_title]));
    axis.value = some.find((name) => name !== "batch") ?? some[0];
    const refill = () => options(which, of(axis.value).map(([i, s]) => [i, s.title]));
    refill();
    const chart = addLatency(place, slices[Number(which.value)]);
    const redraw = () => {
      chart.slice = slices[Number(which.value)];
      chips(chart, names(chart.slice));
      ft.draw([chart]);
    };
    axis.addEventListener("change", () => { refill(); redraw(); });
    which.addEventListener("change", redraw);
  }

  const flops = document.getElementById("operations");
  function operations(wide) {
    const points = [];
    const step = Number(flops.dataset.step ?? 1);
    columns.flops.forEach((count, row) => {
      if (row % step || !count || cell("latency_ns", row) === null) return;
      points.push({ model: cell("model", row), runtime: cell("runtime", row),
        batch: cell("batch", row), flops: count / 1e9, latency: cell("latency_ns", row) / 1e6,
        regime: cell("regime", row) ?? UNKNOWN });
    });
    const runtimes = [...new Set(points.map((p) => p.runtime))];
    return fill(templates.operations[wide ? "wide" : "narrow"],
      { points, runtimes, colours: runtimes.map((name) => colours[name]), columns: wide ? 4 : 2 });
  }

  for (const place of document.querySelectorAll("[data-slice]")) {
    addLatency(place, slices[Number(place.dataset.slice)]);
  }
  for (const [id, sizes] of Object.entries(ft.data.charts)) {
    ft.add(document.getElementById(id), (wide) => (wide ? sizes.wide : sizes.narrow));
  }
  const explore = document.getElementById("explore");
  if (explore) explorer(explore);
  if (flops) ft.add(flops, operations, null, columns.flops.length > MANY);
  window.frameworktax = { ...window.frameworktax, cell, latency, fill };
  ft.open();
})();
