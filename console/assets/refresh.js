// Loads the page again every 5 seconds while it is visible, and keeps the focus where it is. Everything works without it.
"use strict";
(() => {
  const every = 5000;
  const patience = 8000; // with the console, which gives the database 5 s
  const place = document.getElementById("refresh");
  if (!document.querySelector("main[data-live]")) return;
  const button = document.createElement("button");
  const state = document.createElement("span");
  state.setAttribute("role", "status");
  place.append(button, " ", state);
  let stopped = false, timer = 0, busy = false;
  const say = () => { button.textContent = stopped ? "Refresh every 5 s" : "Stop refreshing"; };
  const selecting = () => { const s = getSelection(); return s && !s.isCollapsed; };
  const typing = () => document.activeElement && document.activeElement.matches("main input, main select, main textarea");

  async function load() {
    if (busy || stopped || document.hidden || selecting() || typing()) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(patience) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = fresh.querySelector("main[data-live]"), old = document.querySelector("main");
      if (!next) throw new Error("no page");
      if (stopped || document.hidden || selecting() || typing()) return;
      const focus = document.activeElement, inside = old.contains(focus) && focus !== old;
      const address = inside && focus.getAttribute("href");
      const scrolled = [...old.querySelectorAll(".wide")].map((e) => e.scrollLeft);
      old.replaceChildren(...next.childNodes);
      [...old.querySelectorAll(".wide")].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
      if (inside) ([...old.querySelectorAll("a")].find((a) => a.getAttribute("href") === address) || old).focus({ preventScroll: true });
      document.querySelector("footer time").replaceWith(fresh.querySelector("footer time"));
      document.title = fresh.title;
      state.textContent = state.className = "";
    } catch {
      state.className = "mark bad";
      state.textContent = "The console does not answer: what you see is old.";
    } finally {
      busy = false;
    }
  }
  const schedule = () => {
    clearInterval(timer);
    if (!stopped && !document.hidden) timer = setInterval(load, every);
  };
  button.addEventListener("click", () => { stopped = !stopped; say(); schedule(); if (!stopped) load(); });
  document.addEventListener("visibilitychange", () => { schedule(); load(); });
  say();
  schedule();
})();
