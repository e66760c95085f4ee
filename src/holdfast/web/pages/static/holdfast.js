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
    else if (event.key === "x") document.activeElement.closest("tr")?.querySelector("[data-pick]")?.click();
    else if (event.key === "n") document.querySelector("[data-next]")?.click();
    else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (!search) return;
      search.focus();
      search.select();
    } else return;
    event.preventDefault();
  });

  // Runs that are ticked stay so when the list is asked for again; two can be compared.
  const picked = new Set();
  const pick = () => {
    for (const box of document.querySelectorAll("[data-pick]")) box.checked = picked.has(box.value);
    for (const button of document.querySelectorAll("[data-compare]")) button.disabled = picked.size !== 2;
  };
  const isPicked = () => {
    for (const box of document.querySelectorAll("[data-pick]")) box.checked ? picked.add(box.value) : picked.delete(box.value);
    pick();
  };
  document.addEventListener("change", isPicked);
  window.addEventListener("pageshow", isPicked);
  document.addEventListener("htmx:afterSwap", pick);

  // Forms act once: a second click while the first is on its way does nothing.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-once]")) return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("[data-sent]")) delete form.dataset.sent;
  });

  // The page of a run: asked for again when something happens in it, and every few seconds meanwhile.
  const live = document.querySelector("[data-live]");
  if (!live) return;
  const QUIET = 4000, LEAST = 300;
  const known = new Map();
  let source = null, isAsked = false, isWaiting = false, begun = 0, took = 0, asked = 0;
  const isOver = () => live.querySelector("[data-going=no]") !== null;
  const ask = () => {
    if (isAsked) { isWaiting = true; return; }
    isAsked = true;
    // No more often than the server can answer with ease.
    setTimeout(() => { begun = Date.now(); refresh(live); }, Math.max(LEAST, 3 * took) - Math.min(LEAST, Date.now() - asked));
  };
  const offline = document.getElementById("offline");
  const say = (text) => { if (offline && offline.textContent !== text) offline.textContent = text; };
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.target !== live) return;
    asked = Date.now();
    took = asked - begun;
    isAsked = false;
    say(event.detail.successful ? "" : "The server does not answer. This page goes on when it does.");
    if (isWaiting) { isWaiting = false; ask(); }
  });

  // A part that is the same is left alone; of one that is not, what was written, opened and scrolled stays.
  const findIn = (root, id) => root.querySelector(`#${CSS.escape(id)}`);
  const carry = (from, to) => {
    for (const field of from.querySelectorAll("input[id], textarea[id], select[id], details[id]")) {
      const other = findIn(to, field.id);
      if (!other) continue;
      if (field.localName === "details") other.open = field.open;
      else if (field.type === "radio" || field.type === "checkbox") other.checked = field.checked;
      else other.value = field.value;
    }
  };
  // What was written in a form that somebody else has answered meanwhile stays to be read, with what became of it.
  const keep = (from, to) => {
    for (const form of from.querySelectorAll("form")) {
      const ident = form.dataset.question;
      if (!ident || form.dataset.sent || to.querySelector(`[data-question="${ident}"]`)) continue;
      const fields = [...form.querySelectorAll("textarea, input:not([type=hidden])")];
      const written = fields.map((field) => (field.type !== "radio" ? field.value : field.checked ? field.closest("label").textContent : "").trim()).filter(Boolean);
      const told = to.querySelector(`[data-answered="${ident}"]`);
      if (!written.length) continue;
      const box = document.getElementById("written-before").content.cloneNode(true);
      box.querySelector("p").textContent = `${told ? told.textContent : "This question takes no answer any more."} Your answer was not taken.`;
      box.querySelector("textarea").value = written.join("\n");
      live.before(box);
    }
  };
  // A word on what was asked for goes when it has happened; that on an answer does not stand for the next question.
  const forget = (id, next) => {
    const said = document.querySelector("[data-until]"), until = said?.dataset.until;
    if (until === "question" && id === "part-questions" && next.querySelector(".question")) said.textContent = said.dataset.more;
    if (until === "stopped" && next.dataset.going === "no") said.remove();
  };
  const scrolled = new Map();
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail, next = fragment.firstElementChild;
    if (!next || !target.id) return;
    const text = next.outerHTML;
    if (!known.has(target.id)) known.set(target.id, target.outerHTML);
    if (known.get(target.id) === text) { event.detail.shouldSwap = false; return; }
    known.set(target.id, text);
    carry(target, next);
    if (target.id === "part-questions") keep(target, next);
    forget(target.id, next);
    for (const box of target.querySelectorAll("[data-scroll]")) scrolled.set(box.id, [box.scrollLeft, box.scrollTop]);
    const announce = document.getElementById("announce");
    if (announce && next.dataset.said && next.dataset.said !== target.dataset.said) announce.textContent = next.dataset.said;
  });
  document.addEventListener("htmx:oobAfterSwap", () => {
    for (const [id, [left, top]] of scrolled) document.getElementById(id)?.scrollTo(left, top);
    scrolled.clear();
  });

  // Browsers connect again by themselves, and go on after the last event; hidden pages need no connection.
  const connect = () => {
    if (source || isOver() || !isSeen()) return;
    source = new EventSource(live.dataset.live);
    source.addEventListener("open", ask);
    source.addEventListener("change", ask);
    source.addEventListener("end", () => { disconnect(); ask(); });
  };
  const disconnect = () => { if (source) source.close(); source = null; };
  document.addEventListener("visibilitychange", () => { if (isSeen()) connect(); else disconnect(); });
  window.addEventListener("pagehide", disconnect);
  setInterval(() => {
    if (!isSeen() || isOver()) return;
    if (source && source.readyState === EventSource.CLOSED) disconnect();
    connect();
    if (Date.now() - asked >= QUIET) ask();
  }, 1000);
  asked = Date.now();
  connect();
})();
