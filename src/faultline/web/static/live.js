// Keep the page as it is now: ask for it again and again while somebody looks at it. Without this file it still works.
// Each time is a request of its own. A stream for each tab would take the browser's six connections, and the seventh tab none.
"use strict";
(() => {
  const EVERY = 2000, EVERY_MAX = 10000, SHARE = 5, PATIENCE = 4000;
  const box = document.getElementById("live");
  if (!box || !window.htmx) return;
  const word = document.getElementById("live-word"), button = document.getElementById("live-button");
  const notice = document.getElementById("standing");
  let paused = sessionStorage.getItem("paused") === "yes";
  let timer = null, wait = EVERY, askedAt = 0, freshAt = Date.now(), fault = "";

  const page = () => document.getElementById("page");
  const ticked = () => document.querySelectorAll("#ticked input[name=id]:checked").length;
  const copying = () => {
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed;
  };
  // Rows must not move under the cursor of somebody who is choosing some of them.
  const held = () => ticked() > 0 || copying();
  const late = () => Date.now() - freshAt > wait + PATIENCE;

  const say = () => {
    const state = paused ? "paused" : held() ? "held" : fault || late() ? "stale" : "live";
    const since = `since ${page().dataset.made} UTC`, count = ticked();
    const show = (where, text) => { if (where.textContent !== text) where.textContent = text; };
    box.dataset.live = document.body.dataset.live = state;
    show(word, { paused: `Paused ${since}`, held: `Held ${since}`, stale: `Stale ${since}`, live: "Live" }[state]);
    show(button, paused ? "Resume" : "Pause");
    button.setAttribute("aria-pressed", String(paused));
    show(notice, state === "stale"
      ? `Not updated ${since}: ${fault || "the server did not answer"}. The page shows the state of that time.`
      : state === "held" && count
        ? `Updates stopped ${since}, while ${count} ${count === 1 ? "job is" : "jobs are"} selected. Clear the selection to continue.` : "");
    notice.classList.toggle("hidden", !notice.textContent);
  };

  const later = (soon) => {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, soon);
  };

  const refresh = () => {
    if (held()) return later(EVERY);
    askedAt = Date.now();
    later(EVERY_MAX + PATIENCE); // whatever becomes of this one
    htmx.trigger(page(), "refresh");
  };

  document.addEventListener("htmx:before:swap", (event) => {
    if (paused || held()) event.preventDefault(); // ticked while the answer was on its way
  });
  document.addEventListener("htmx:finally:request", (event) => {
    const { response, status } = event.detail.ctx;
    if (response?.raw?.redirected && new URL(response.raw.url).pathname.endsWith("/sign-in")) return location.reload();
    if (!response) fault = "the server cannot be reached";
    else if (response.status === 503) {
      const away = response.raw?.headers.get("Faultline-Away-Since");
      fault = away ? `the database has not answered since ${away}` : "the database is unavailable";
    }
    else if (response.status >= 400) fault = `the server answered ${response.status}`;
    else {
      fault = "";
      if (status === "swapped" && !held()) freshAt = Date.now();
    }
    // A page that is costly to make is asked for less often.
    wait = Math.min(Math.max(EVERY, SHARE * (Date.now() - askedAt)), EVERY_MAX);
    say();
    later(wait);
  });

  const go = () => { say(); later(0); };
  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    go();
  });
  document.addEventListener("change", () => { say(); if (!held()) later(0); });
  document.addEventListener("visibilitychange", go);
  window.addEventListener("pageshow", (event) => { if (event.persisted) go(); });
  window.addEventListener("pagehide", () => clearTimeout(timer));
  setInterval(say, 1000);

  box.classList.remove("hidden");
  say();
  later(EVERY);
})();
