// The sliders: reads the controls, asks `answer`, writes what it says.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const form = document.getElementById("whatif");
  const { subjects, shown } = ft.data.whatif;
  if (!form) return;
  const subject = document.getElementById("whatif-subject");
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  function told(found, point) {
    if (found.reason) return ["not predicted", found.reason];
    if (found.same) return [`${ft.ms(found.latency[0])} ms`, "as it was measured"];
    const [factor, low, high] = found.factor;
    const proof = found.formula === "measured" ? "measured, not predicted" :
      found.errors ? `${found.formula}; off by ${percent(found.errors.median)} at the median of ` +
        `${found.errors.n} checks` : `${found.formula}; never checked`;
    return [`${ft.ms(point.latency[0])} → ${ft.ms(found.latency[0])} ms ` +
      `(${ft.ms(found.latency[1])} to ${ft.ms(found.latency[2])})`,
    `${factor.toFixed(2)} × faster (${low.toFixed(2)} to ${high.toFixed(2)}); ${proof}`];
  }

  function write(name, found, point) {
    const [first, second] = told(found, point);
    const place = form.querySelector(`[data-answer="${name}"]`);
    place.querySelector("b").textContent = first;
    place.querySelector("small").textContent = second;
    place.dataset.latency = found.reason ? "" : String(found.latency[0]);
  }

  function update() {
    const point = subjects[Number(subject.value)];
    for (const row of form.querySelectorAll("[data-change]")) {
      const name = row.dataset.change;
      row.hidden = row.dataset.on === "device" ? point.onCpu : row.dataset.on === "cpu" &&
        !point.onCpu;
      if (row.hidden) continue;
      if (name === "machine") {
        const change = { deviceSpeed: value("deviceSpeed"), hostSpeed: value("queueSpeed"),
          graphs: document.getElementById("graphs").checked };
        const same = change.deviceSpeed === 1 && change.hostSpeed === 1 && !change.graphs;
        write(name, same ? { same, latency: point.latency } : ft.answer(point, change, shown),
          point);
        continue;
      }
      const input = row.querySelector("input");
      if (name === "batch") {
        const sizes = point.batches.map((o) => o.at);
        input.max = String(2 * Math.max(...sizes));
        if (input.dataset.subject !== subject.value) input.value = String(point.batch);
        input.dataset.subject = subject.value;
      }
      const set = name === "batch" ? Number(input.value) : value(input.id);
      write(name, set === (name === "batch" ? point.batch : 1) ?
        { same: true, latency: point.latency } :
        ft.answer(point, { [name]: set }, shown), point);
    }
    for (const output of form.querySelectorAll("output")) {
      const input = document.getElementById(output.htmlFor);
      const text = input.dataset.scale ? `× ${value(input.id).toFixed(2)}` : input.value;
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    }
  }

  // Factors move on a scale of powers of two; the middle is exactly 1.
  function value(id) {
    return 2 ** Number(document.getElementById(id).value);
  }

  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(update));
  update();
})();
