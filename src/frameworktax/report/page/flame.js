// Flame views: a box that is pressed fills the width, its siblings and theirs go; again, they return.
// A search leaves what it finds in colour, and says how much of the call that is.
(() => {
  "use strict";
  const ft = window.frameworktax;
  for (const view of document.querySelectorAll(".flame > ul")) {
    let alone = null;
    const look = (item) => {
      alone = item === alone ? null : item;
      view.querySelectorAll("[hidden]").forEach((hidden) => { hidden.hidden = false; });
      for (let at = alone; at && at.parentElement !== view; at = at.parentElement.closest("li")) {
        for (const other of at.parentElement.children) other.hidden = other !== at;
      }
    };
    for (const box of view.querySelectorAll(".box")) {
      const button = ft.button("", "", () => look(button.parentElement));
      Object.assign(button, { className: "box", title: box.title });
      button.style.cssText = box.style.cssText;
      button.append(...box.childNodes);
      box.replaceWith(button);
    }
    const search = ft.element("input", { type: "search", placeholder: "Find a name" });
    search.setAttribute("aria-label", "Find boxes by name");
    const found = ft.element("output");
    view.before(ft.element("p", { className: "find" }, search, " ", found));
    search.addEventListener("input", () => {
      const wanted = search.value.trim().toLowerCase();
      const inside = (item) => wanted && item.dataset.name.toLowerCase().includes(wanted);
      let share = 0;
      for (const box of view.querySelectorAll(".box")) {
        const item = box.parentElement;
        let at = item;
        while (at && at.matches("li") && !inside(at)) at = at.parentElement.closest(".flame > ul li");
        box.classList.toggle("missed", Boolean(wanted) && !at);
        if (at === item) {
          const above = item.parentElement.closest(".flame > ul li");
          if (!above || !above.querySelector(":scope > .box").classList.contains("hit")) share += Number(item.dataset.share);
        }
        box.classList.toggle("hit", Boolean(wanted) && Boolean(at));
      }
      found.textContent = wanted ? `${(100 * share).toFixed(1)} % of the call` : "";
    });
  }
})();
