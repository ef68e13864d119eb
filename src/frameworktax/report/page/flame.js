// Flame views: a box that is pressed fills the width, its siblings and theirs go; again, they return.
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
  }
})();
