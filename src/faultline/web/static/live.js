// Keep the page as it is now: told by server-sent events, else by asking every few seconds. Without this file it still works.
"use strict";
(() => {
  const EVENT_WAIT = 300, POLL = 2000, RECONNECT = 15000;
  const box = document.getElementById("live");
  if (!box || !window.htmx) return;
  const word = document.getElementById("live-word"), button = document.getElementById("live-button");
  let source = null, connected = false, due = null, retry = null;
  let paused = sessionStorage.getItem("paused") === "yes";

  const say = () => {
    const state = paused ? "paused" : connected ? "live" : "polling";
    box.dataset.live = state;
    word.textContent = { paused: "Paused", live: "Live", polling: "Polling" }[state];
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
  };

  const selecting = () => {
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed;
  };

  const later = (wait) => {
    if (paused || (due && wait >= due.wait)) return;
    if (due) clearTimeout(due.timer);
    due = { wait, timer: setTimeout(refresh, wait) };
  };

  const refresh = () => {
    due = null;
    // Nobody looks, or somebody is copying: not now.
    const page = document.getElementById("page");
    if (!document.hidden && !selecting()) htmx.trigger(page, "refresh");
    // Not everything is an event: ages grow, and a job that simply goes on says nothing.
    later(connected ? 1000 * (page.dataset.every || 5) : POLL);
  };

  const connect = () => {
    clearTimeout(retry);
    if (paused || source) return;
    source = new EventSource(box.dataset.events);
    source.onopen = () => { connected = true; say(); };
    const lost = () => {
      if (!source) return;
      source.close();
      source = null;
      connected = false;
      say();
      later(POLL);
      retry = setTimeout(connect, RECONNECT);
    };
    source.onerror = lost;
    source.addEventListener("end", lost);
    const told = () => later(EVENT_WAIT);
    source.onmessage = told;
    for (const kind of (box.dataset.kinds || "").split(" ").filter(Boolean)) source.addEventListener(kind, told);
  };

  const stop = () => {
    if (source) source.close();
    if (due) clearTimeout(due.timer);
    clearTimeout(retry);
    source = due = null;
    connected = false;
  };

  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    if (paused) stop(); else { connect(); later(0); }
    say();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) later(0); });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { connect(); later(0); } });

  box.classList.remove("hidden");
  say();
  connect();
  later(POLL);
})();
