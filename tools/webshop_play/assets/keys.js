// Keys for those who do not like the mouse: / goes to the search field, the arrows step through a replay.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const isWriting = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (isWriting) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]:not([disabled])");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
    return;
  }
  // A box that scrolls sideways keeps its arrow keys.
  if (event.target.closest && event.target.closest("[tabindex='0']")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) {
    event.preventDefault();
    link.click();
  }
});
