// One box ticks all jobs of the page. Without this file they are ticked one by one.
"use strict";
document.addEventListener("change", (event) => {
  if (event.target.id !== "tick-all") return;
  for (const box of document.querySelectorAll("#ticked input[name=id]")) box.checked = event.target.checked;
});
