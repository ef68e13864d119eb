(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("ft-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const NARROW = 620;

  function config() {
    const night = dark.matches && !print.matches;
    const ink = night ? "#e9ecef" : "#16191d";
    const soft = night ? "#9da7b3" : "#59626e";
    const line = night ? "#2e343c" : "#e3e6ea";
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent",
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

  // Redrawing is queued, so that a resize during a drawing never leaves two charts in one place.
  let queue = Promise.resolve();
  function draw() {
    queue = queue.then(async () => {
      for (const [id, sizes] of Object.entries(data.charts)) {
        const place = document.getElementById(id);
        const spec = place.clientWidth < NARROW ? sizes.narrow : sizes.wide;
        await vegaEmbed(place, spec, {
          ast: true, // expressions are interpreted: the page allows no eval
          renderer: "svg",
          config: config(),
          actions: { export: true, source: false, compiled: false, editor: false },
          downloadFileName: id,
          tooltip: { theme: dark.matches ? "dark" : "light" },
        });
      }
      document.body.dataset.drawn = "yes";
    });
    return queue;
  }

  function offer(button, name, type, text) {
    document.getElementById(button).addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text()], { type }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  offer("get-json", "frameworktax.json", "application/json", () => JSON.stringify(data.run, null, 1));
  offer("get-csv", "frameworktax.csv", "text/csv", () => data.csv);
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("main > section > details")) folded.open = true;
  });
  dark.addEventListener("change", draw);
  print.addEventListener("change", draw);
  let narrow = innerWidth < NARROW;
  addEventListener("resize", () => {
    if (narrow !== innerWidth < NARROW) {
      narrow = !narrow;
      draw();
    }
  });
  draw();
})();
