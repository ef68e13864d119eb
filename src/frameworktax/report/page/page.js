// What all parts of the page share: the data, looks, the queue of drawings, downloads.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("ft-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 620;
  const charts = [];

  function config() {
    const night = dark.matches;
    const ink = night ? "#e9ecef" : "#16191d";
    const soft = night ? "#9da7b3" : "#59626e";
    const line = night ? "#2e343c" : "#e3e6ea";
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: night ? "#13161a" : "#ffffff",
      font,
      view: { stroke: null },
      axis: { labelColor: soft, titleColor: soft, titleFontWeight: "normal", gridColor: line,
        domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titlePadding: 10 },
      axisY: { labelColor: ink },
      legend: { labelColor: ink, labelFontSize: 12, symbolFillColor: soft, columnPadding: 16 },
      text: { color: soft },
      rule: { color: ink },
    };
  }

  // A chart is its place and a function from "is there room?" to a specification.
  async function render(chart) {
    const spec = chart.spec(chart.place.clientWidth >= NARROW);
    chart.view?.finalize();
    const found = await vegaEmbed(chart.place, spec, {
      ast: true, // expressions are interpreted: the page allows no eval
      renderer: chart.many ? "canvas" : "svg",
      config: config(),
      actions: false,
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
    chart.view = found.view;
    // The place is the image and has the name; its marks are no images of their own.
    chart.place.querySelector("svg")?.setAttribute("aria-hidden", "true");
    chart.drawn?.(chart);
  }

  // Drawing is queued, so that a resize meanwhile never leaves two charts in one place.
  let queue = Promise.resolve();
  function draw(some = charts, pause = setTimeout) {
    queue = queue.then(async () => {
      for (const chart of some) {
        await render(chart);
        await new Promise((next) => pause(() => next()));
      }
    });
    return queue;
  }

  // What is on the screen comes first; the rest is drawn when the browser is idle.
  async function open() {
    const seen = charts.filter((chart) => chart.place.getBoundingClientRect().top < innerHeight);
    await draw(seen);
    document.body.dataset.open = "yes";
    const idle = window.requestIdleCallback ?? setTimeout; // Safari has none
    await draw(charts.filter((chart) => !seen.includes(chart)),
      (next) => idle(next, window.requestIdleCallback ? { timeout: 200 } : 0));
    document.body.dataset.drawn = "yes";
  }

  function save(name, url) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  }

  function saveText(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    save(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  function button(text, label, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    return made;
  }

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // A drawing of ``many`` marks is one picture: as elements they would take seconds.
  function add(place, spec, drawn, many = false) {
    const chart = { place, spec, drawn, many, view: null };
    charts.push(chart);
    const tools = element("p", { className: "tools" });
    for (const type of ["svg", "png"]) {
      const label = `${place.getAttribute("aria-label")?.split(";")[0]} as ${type.toUpperCase()}`;
      tools.append(button(type.toUpperCase(), label, async () => {
        save(`${place.id}.${type}`, await chart.view.toImageURL(type, type === "png" ? 2 : 1));
      }));
    }
    place.after(tools);
    return chart;
  }

  // Numbers as report/words.py writes them.
  function ms(ns) {
    const value = ns / 1e6;
    if (value && Math.abs(value) < 0.001) return String(Number(value.toPrecision(2)));
    if (Math.abs(value) < 0.1) return value.toFixed(3);
    return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
  }

  function duration(ns) {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(3))} ${unit}`;
    }
    return `${ns.toFixed(0)} ns`;
  }

  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("main > section details")) folded.open = true;
  });
  dark.addEventListener("change", () => draw());
  let narrow = innerWidth < NARROW;
  addEventListener("resize", () => {
    if (narrow !== innerWidth < NARROW) {
      narrow = !narrow;
      draw();
    }
  });
  window.frameworktax = { ...window.frameworktax, data, charts, add, draw, open, saveText, button,
    element, ms, duration };
})();
