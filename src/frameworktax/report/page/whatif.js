// The sliders: shows the answers that report/page_data.py computed for each of their stops.
(() => {
  "use strict";
  const ft = window.frameworktax;
  const form = document.getElementById("whatif");
  const subjects = ft.data.whatif;
  if (!form) return;
  const subject = document.getElementById("whatif-subject");
  const sliders = [...form.querySelectorAll("input[type=range]")];
  const stops = (input) => input.dataset.stops.split(" ");
  const stop = (input) => stops(input)[Number(input.value)];

  function start() {
    for (const input of sliders) {
      input.max = String(stops(input).length - 1);
      input.value = String(stops(input).indexOf("1"));
    }
    document.getElementById("graphs").checked = false;
    update();
  }

  function chosen(change) {
    if (change !== "machine") return stop(document.getElementById(change));
    const [device, host] = ["device_speed", "queue_speed"].map((id) =>
      stop(document.getElementById(id)));
    return `${device} ${host} ${Number(document.getElementById("graphs").checked)}`;
  }

  function update() {
    const point = subjects[Number(subject.value)];
    for (const row of form.querySelectorAll("[data-change]")) {
      const change = row.dataset.change;
      row.hidden = row.dataset.on !== point.device;
      if (row.hidden) continue;
      const [said, more] = point.answers[chosen(change)] ?? [point.latency, "as it was measured"];
      row.querySelector("[data-answer] b").textContent = said;
      row.querySelector("[data-answer] small").textContent = more;
    }
    for (const input of sliders) {
      const text = `× ${stop(input)}`;
      input.setAttribute("aria-valuetext", text);
      form.querySelector(`output[for=${input.id}]`).textContent = text;
    }
  }

  form.addEventListener("input", (event) => (event.target === subject ? start() : update()));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    start();
  });
  start();
})();
