// Keep the page as it is now: told by server-sent events, else by asking every few seconds. Without this file it still works.
"use strict";
(() => {
  const EVENT_WAIT = 400, STEADY = 5000, POLL = 3000, RECONNECT = 15000;
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
    if (!document.hidden && !selecting()) htmx.trigger(document.getElementById("page"), "refresh");
    later(connected ? STEADY : POLL);
  };

  const connect = () => {
    clearTimeout(retry);
    if (paused || source) return;
    source = new EventSource(box.dataset.events);
    source.onopen = () => { connected = true; say(); };
    source.onerror = () => {
      source.close();
      source = null;
      connected = false;
      say();
      later(POLL);
      retry = setTimeout(connect, RECONNECT);
    };
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
