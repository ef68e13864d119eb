// Tables: sorted by a click on a heading, saved as CSV and JSON; the table of every point in pages.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const SIZES = { ns: 1, µs: 1e3, ms: 1e6, s: 1e9, kB: 1e3, MB: 1e6, GB: 1e9, "%": 1 };
  const PAGE = 25;
  const order = new Intl.Collator("en", { numeric: true });

  // The number a cell begins with, in the unit that follows it; NaN where it begins with text.
  function number(text) {
    const found = /^(?:warm|[≥≤=≠±\s])*(-?[\d.]+(?:e[-+]?\d+)?)\s*(ns|µs|ms|s|kB|MB|GB|%)?(?![\w.])/
      .exec(text.trim());
    return found ? Number(found[1]) * (SIZES[found[2]] ?? 1) : NaN;
  }

  function compare(a, b, down) {
    const empty = [a, b].map((text) => text === "" || text === "–");
    if (empty[0] || empty[1]) return empty[0] - empty[1]; // what was not measured stays last
    const [x, y] = [number(a), number(b)];
    const found = Number.isNaN(x) || Number.isNaN(y) ? order.compare(a, b) : x - y;
    return down ? -found : found;
  }

  // Text that a spreadsheet would run is quoted, as in report/rows.py.
  function csv(rows) {
    const quoted = (text) => {
      const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
      return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    return rows.map((row) => row.map((cell) => quoted(String(cell ?? ""))).join(",")).join("\n") + "\n";
  }

  function json(head, rows) {
    const records = rows.map((row) => Object.fromEntries(row.map((v, i) => [head[i] || "name", v])));
    return `${JSON.stringify(records, null, 1)}\n`;
  }

  function text(cell) {
    const bar = cell.querySelector(".bar"); // a drawn breakdown says its numbers in its name
    if (bar) return bar.getAttribute("aria-label");
    const small = [...cell.querySelectorAll("small")].map((s) => s.textContent).join(" ");
    const whole = cell.textContent;
    return small ? `${whole.slice(0, whole.length - small.length)} ${small}`.trim() : whole.trim();
  }

  function tools(name, about, read) {
    return ft.element("p", { className: "tools" },
      ft.button("CSV", `${about} as CSV`, () => ft.saveText(`${name}.csv`, "text/csv", csv(read()))),
      ft.button("JSON", `${about} as JSON`, () => {
        const [head, ...rows] = read();
        ft.saveText(`${name}.json`, "application/json", json(head, rows));
      }));
  }

  function headings(table, sort) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => {
      if (!head.textContent) return;
      const button = ft.element("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(i, down);
      });
    });
  }

  document.querySelectorAll(".scroll table").forEach((table, n) => {
    const body = table.tBodies[0];
    headings(table, (i, down) => {
      const rows = [...body.rows].sort((a, b) => compare(text(a.cells[i]), text(b.cells[i]), down));
      body.append(...rows);
    });
    const about = table.caption?.textContent ?? "table";
    const name = about.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 40) || `table-${n}`;
    const all = () => [...table.rows].map((row) => [...row.cells].map(text));
    table.parentElement.after(tools(name, about, all));
  });

  function everyPoint(place) {
    const shown = { model: "model", platform: "platform", runtime: "runtime", batch: "batch",
      length: "length", image_size: "px", precision: "precision", latency_ns: "latency, ms",
      tax_share: "tax", ratio_to_eager: "of eager's", outputs: "outputs", regime: "regime",
      status: "status" };
    const { columns } = ft.data;
    const count = columns.batch.length;
    const differs = (name) => {
      const first = ft.cell(name, 0);
      return columns.batch.some((_, row) => ft.cell(name, row) !== first);
    };
    const always = ["model", "runtime", "batch", "latency_ns", "tax_share", "status"];
    const names = Object.keys(shown).filter((name) => always.includes(name) || differs(name));
    const ms = (ns) => { // as report/words.py writes it
      const value = ns / 1e6;
      if (value && Math.abs(value) < 0.001) return String(Number(value.toPrecision(2)));
      if (Math.abs(value) < 0.1) return value.toFixed(3);
      return Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toPrecision(3);
    };
    const write = { latency_ns: ms,
      tax_share: (v, row) => { // a twin's overhead is named, as in report/words.py
        const warm = ft.cell("bill_method", row) === "width-shrunk-twin" ? "warm " : "";
        return `${warm}${(100 * v).toFixed(0)} %`;
      },
      ratio_to_eager: (v) => v.toFixed(2) };
    const value = (name, row) => {
      const found = ft.cell(name, row);
      if (found === null || found === "") return "–";
      return (write[name] ?? String)(found, row);
    };
    let rows = [...columns.batch.keys()];
    let at = 0;
    let sort = () => {};
    const head = ft.element("tr", {}, ...names.map((name) =>
      ft.element("th", { scope: "col", textContent: shown[name] })));
    const table = ft.element("table", {},
      ft.element("caption", { textContent: `${count} point${count === 1 ? "" : "s"}` }),
      ft.element("thead", {}, head), ft.element("tbody"));
    const search = ft.element("input", { type: "search", id: "find", placeholder: "bert onnx" });
    const where = ft.element("span", { className: "where" });
    where.setAttribute("aria-live", "polite");
    const turn = (step) => {
      at = Math.min(Math.max(0, at + step * PAGE), Math.max(0, rows.length - 1));
      show();
    };
    const back = ft.button("‹", "Earlier points", () => turn(-1));
    const on = ft.button("›", "Further points", () => turn(1));

    function show() {
      table.tBodies[0].replaceChildren(...rows.slice(at, at + PAGE).map((row) =>
        ft.element("tr", {}, ...names.map((name, i) => {
          const made = ft.element(i ? "td" : "th", { textContent: value(name, row) });
          if (!i) made.scope = "row";
          return made;
        }))));
      const last = Math.min(at + PAGE, rows.length);
      where.textContent = rows.length ? `${at + 1} to ${last} of ${rows.length}` : "none";
      back.disabled = at === 0;
      on.disabled = last >= rows.length;
    }

    function filter() {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const texts = ["model", "platform", "runtime", "precision", "regime", "status"];
      rows = [...columns.batch.keys()].filter((row) => {
        const said = texts.map((name) => ft.cell(name, row) ?? "").join(" ").toLowerCase();
        return wanted.every((word) => said.includes(word));
      });
      sort();
      at = 0;
      show();
    }

    headings(table, (i, down) => {
      const name = names[i];
      const key = (row) => ft.cell(name, row);
      sort = () => rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        const found = typeof x === "number" ? x - y : order.compare(x, y);
        return down ? -found : found;
      });
      sort();
      at = 0;
      show();
    });
    search.addEventListener("input", filter);
    const all = Object.keys(columns);
    const read = () => [all, ...rows.map((row) => all.map((name) => ft.cell(name, row)))];
    const scroll = ft.element("div", { className: "scroll" }, table);
    const label = ft.element("label", { htmlFor: "find", textContent: "Only with" });
    place.append(ft.element("p", { className: "pick" }, label, search, back, on, where), scroll,
      tools("points", "The points shown", read));
    show();
    reach(scroll);
  }

  // What scrolls can be reached with a keyboard.
  function reach(scroll) {
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", scroll.querySelector("caption")?.textContent ?? "table");
  }

  const place = document.getElementById("every-point");
  if (ft.data.columns.batch.length) ft.later(() => everyPoint(place));
  document.querySelectorAll(".scroll").forEach(reach);
  const { run, csv: whole } = ft.data;
  const offer = (id, name, type, made) => document.getElementById(id)
    ?.addEventListener("click", () => ft.saveText(name, type, made()));
  offer("get-json", "frameworktax.json", "application/json", () => JSON.stringify(run, null, 1));
  offer("get-csv", "frameworktax.csv", "text/csv", () => whole);
})();
