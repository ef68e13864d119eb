// Latency along any axis, and all points at once: fills the specifications of latency_layers.py and
// overview_charts.py as charts.py does for paper. A test holds one against the other.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const { columns, slices, templates, palette } = ft.data;
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

  function colours(runtimes) {
    let next = 0;
    return runtimes.map((name) => Object.hasOwn(palette.runtimes, name) ? palette.runtimes[name] :
      palette.others[next++ % palette.others.length]);
  }

  function ticks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const step of [1, 2, 5]) found.push(Number((step * 10 ** power).toPrecision(6)));
    }
    return found.filter((t) => t >= low && t <= high);
  }

  function bands(points, left, right, low, high) {
    if (points.every((p) => p.regime === UNKNOWN)) return [];
    const xs = points.map((p) => p.x);
    const edges = [left, ...xs.slice(1).map((x, i) => Math.sqrt(x * xs[i])),
      Math.min(right, xs.at(-1) * 1.3)];
    const made = [];
    points.forEach((p, i) => {
      if (made.length && made.at(-1).regime === p.regime) {
        made.at(-1).end = edges[i + 1];
      } else if (p.regime !== UNKNOWN) {
        made.push({ regime: p.regime, start: edges[i], end: edges[i + 1],
          said: made.length ? p.regime : `${p.runtime}: ${p.regime}`, low, high });
      }
    });
    for (const band of made) {
      // A name that does not fit into its band is left to the shape of the points.
      const room = Math.log(band.end / band.start) / Math.log(right / left);
      if (band.said.length * palette.letter > room) band.said = "";
    }
    return made;
  }

  function ends(points, runtimes, low, high) {
    const last = runtimes.map((name) => points.filter((p) => p.runtime === name).at(-1));
    last.sort((a, b) => a.latency - b.latency);
    const gap = palette.gap * Math.log(high / low) / palette.height;
    const wanted = last.map((p) => Math.log(p.latency));
    const placed = [];
    for (const at of wanted) {
      placed.push(placed.length ? Math.max(at, placed.at(-1) + gap) : Math.max(at, Math.log(low)));
    }
    const shift = placed.reduce((all, p, i) => all + p - wanted[i], 0) / Math.max(1, placed.length);
    const over = Math.max(0, placed.at(-1) - shift + gap / 2 - Math.log(high));
    return last.map((p, i) => ({ runtime: p.runtime, x: p.x,
      latency: Math.exp(placed[i] - shift - over) }));
  }

  function latency(slice, wide) {
    const points = slice.rows.map((row) => point(row, slice.axis));
    const xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
    const runtimes = [...new Set(points.map((p) => p.runtime))];
    const low = Math.min(...points.map((p) => p.low)) * 0.9;
    const high = Math.max(...points.map((p) => p.high)) * 1.12;
    const left = xs[0] / 1.08;
    const right = wide ? xs.at(-1) * (xs.at(-1) / xs[0]) ** 0.2 * 1.4 : xs.at(-1) * 1.08;
    const regimes = Object.keys(palette.shapes).filter((r) => points.some((p) => p.regime === r));
    const first = points.filter((p) => p.runtime === runtimes[0]);
    return fill(templates[wide ? "wide" : "narrow"], {
      ...palette.axes[slice.axis],
      points,
      bands: bands(first, left, right, low, high),
      ends: ends(points, runtimes, low, high),
      free: slice.free ? [{ x: slice.free[0], latency: low * 1.06, text: slice.free[1] }] : [],
      x_domain: [left, right],
      x_ticks: xs,
      y_domain: [low, high],
      y_ticks: ticks(low, high),
      runtimes,
      colours: colours(runtimes),
      regimes,
      shapes: regimes.map((name) => palette.shapes[name]),
    });
  }

  // One button a runtime in place of a legend: with a keyboard too. None pressed shows all.
  function chips(chart, runtimes) {
    chart.alone = new Set();
    chart.chips?.remove();
    chart.chips = ft.element("p", { className: "chips" });
    chart.chips.setAttribute("role", "group");
    chart.chips.setAttribute("aria-label", "Runtimes to see alone");
    colours(runtimes).forEach((colour, i) => {
      const swatch = ft.element("i");
      swatch.style.background = colour;
      const chip = ft.element("button", { type: "button" }, swatch, runtimes[i]);
      chip.setAttribute("aria-pressed", "false");
      chip.addEventListener("click", () => {
        const on = chip.getAttribute("aria-pressed") !== "true";
        chip.setAttribute("aria-pressed", String(on));
        chart.alone[on ? "add" : "delete"](runtimes[i]);
        isolate(chart);
      });
      chart.chips.append(chip);
    });
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
    chips(chart, [...new Set(slice.rows.map((row) => cell("runtime", row)))]);
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
    const axes = Object.keys(palette.axes).filter((name) => of(name).length);
    options(axis, axes.map((name) => [name, palette.axes[name].x_title]));
    axis.value = axes.find((name) => name !== "batch") ?? axes[0];
    const refill = () => options(which, of(axis.value).map(([i, s]) => [i, s.title]));
    refill();
    const chart = addLatency(place, slices[Number(which.value)]);
    const redraw = () => {
      chart.slice = slices[Number(which.value)];
      chips(chart, [...new Set(chart.slice.rows.map((row) => cell("runtime", row)))]);
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
      { points, runtimes, colours: colours(runtimes) });
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
