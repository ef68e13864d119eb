// What all parts of the page share: the data, looks, the queue of drawings, downloads.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("ft-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 620;
  const charts = [];

  const LIGHT = { paper: "#ffffff", ink: "#16191d", soft: "#59626e", line: "#e3e6ea" };
  const DARK = { paper: "#13161a", ink: "#e9ecef", soft: "#9da7b3", line: "#2e343c" };

  // A text that begins with @ is a hole; vega.py has the same.
  function fill(spec, values) {
    if (Array.isArray(spec)) return spec.map((item) => fill(item, values));
    if (spec && typeof spec === "object") {
      return Object.fromEntries(Object.entries(spec).map(([k, v]) => [k, fill(v, values)]));
    }
    return typeof spec === "string" && spec.startsWith("@") ? values[spec.slice(1)] : spec;
  }

  function config() {
    const { fontFamily: font } = getComputedStyle(document.body);
    return fill(data.look, { font, ...(dark.matches ? DARK : LIGHT) });
  }

  // A chart is its place and a function that returns a specification.
  async function render(chart) {
    const spec = chart.spec();
    spec.params.find(({ name }) => name === "wide").value = chart.place.clientWidth >= NARROW;
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

  // What is on the screen comes first; the rest is made and drawn when the browser is idle.
  const rest = [];
  const later = (make) => rest.push(make);
  async function open() {
    const seen = charts.filter((chart) => chart.place.getBoundingClientRect().top < innerHeight);
    await draw(seen);
    document.body.dataset.open = "yes";
    for (const make of rest) make();
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
  window.frameworktax = { ...window.frameworktax, data, add, draw, fill, later, open, saveText, button,
    element };
})();
