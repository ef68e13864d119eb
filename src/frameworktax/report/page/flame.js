// Flame views: a box that is pressed fills the width, its siblings and theirs go; again, they return.
// A search leaves what it finds in colour, and says how much of the call that is.
(() => {
  "use strict";
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
      const button = document.createElement("button");
      button.type = "button";
      button.className = "box";
      button.title = box.title;
      button.style.cssText = box.style.cssText;
      button.append(...box.childNodes);
      button.addEventListener("click", () => look(button.parentElement));
      box.replaceWith(button);
    }
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "Find a name";
    search.setAttribute("aria-label", "Find boxes by name");
    const found = document.createElement("output");
    const line = document.createElement("p");
    line.className = "find";
    line.append(search, " ", found);
    view.before(line);
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
