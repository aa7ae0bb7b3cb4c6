// A convenience: values beside the pointer at once, and on touch. Without it the browser shows the same titles.
(() => {
  "use strict";
  const words = new WeakMap();
  for (const title of document.querySelectorAll("svg title")) {
    words.set(title.parentNode, title.textContent);
    title.remove();
  }
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);

  const owner = (node) => {
    while (node instanceof Element && !words.has(node)) node = node.parentNode;
    return node instanceof Element ? node : null;
  };
  const show = (event) => {
    const found = owner(event.target);
    tip.hidden = found === null;
    if (found === null) return;
    tip.textContent = words.get(found);
    const page = document.documentElement;
    const left = Math.min(event.clientX + 14, page.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < page.clientHeight;
    const top = below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${Math.max(8, top) + scrollY}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });

  if (navigator.clipboard) {
    for (const command of document.querySelectorAll(".command")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(command.querySelector("code").textContent);
        button.textContent = "copied";
      });
      command.append(button);
    }
  }
})();
