// What pages do beside links and forms: refreshing what is live, keys, and the slider of checkpoints.
(() => {
  "use strict";

  const refresh = (element) => window.htmx && htmx.trigger(element, "refresh");
  const isSeen = () => document.visibilityState === "visible";

  // Lists are asked for again every few seconds while they are seen, unless the last answer is still awaited.
  setInterval(() => {
    if (!isSeen()) return;
    const now = Date.now();
    for (const element of document.querySelectorAll("[data-every]")) {
      const last = Number(element.dataset.at || 0);
      if (last && now - last < Number(element.dataset.every)) continue;
      element.dataset.at = String(now);
      if (last) refresh(element);
    }
  }, 250);

  // Keys: / searches, j and k move between rows, Enter opens what has the focus.
  const isTyping = (target) => target instanceof Element && target.closest("input, textarea, select, [contenteditable]");
  const move = (by) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) {
      if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
      return;
    }
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (!search) return;
      search.focus();
      search.select();
    } else return;
    event.preventDefault();
  });
})();
