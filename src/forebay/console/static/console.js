// The pages work without this script. It adds the reader's time zone, updates without a jump, and keys.
"use strict";
(() => {
  const body = document.body;
  const age = document.getElementById("age");
  const ageText = document.getElementById("age-text");
  // The server may have read the numbers of this page some seconds ago.
  const readAt = (page) => Date.now() - 1000 * Number(page.body.dataset.age ?? 0);
  let loadedAt = readAt(document);
  let isStale = document.getElementById("stale") !== null;
  let isPaused = false;
  let isReading = false;
  let source = null;

  // --- times ---
  const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const units = [["d", 86400, 2], ["h", 3600, 1], ["min", 60, 1]];
  const length = (seconds) => {
    for (const [unit, size, least] of units) {
      if (seconds >= size * least) {
        const value = seconds / size;
        return `${value < 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(0)} ${unit}`;
      }
    }
    return `${Math.round(seconds)} s`;
  };
  const showTimes = (inside) => {
    for (const one of inside.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      const utc = one.dataset.utc ?? one.title;
      one.dataset.utc = utc;
      one.title = `${zoned.format(at)}, ${utc}`;
      const seconds = (Date.now() - at) / 1000;
      one.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${length(seconds)} ago` : `in ${length(-seconds)}`;
    }
  };

  // --- updates ---
  const showAge = () => {
    const seconds = Math.round((Date.now() - loadedAt) / 1000);
    const text = isPaused ? `paused, ${seconds} s old` : isStale ? `stale, ${seconds} s old` : `${seconds} s ago`;
    if (ageText.textContent !== text) ageText.textContent = text;
    age.classList.toggle("live", !isPaused && !isStale && source !== null);
    age.classList.toggle("stale", isStale);
  };
  // What a person has opened, selected or types in stays as it is until they let go of it.
  const isInUse = (element) => {
    if (element.contains(document.activeElement) && document.activeElement !== body) return true;
    if (element.querySelector("[aria-selected=true], details[open]")) return true;
    if (zoom !== null && element.contains(zoom.plot)) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.containsNode(element, true)) || element.matches(":hover");
  };
  const read = async () => {
    if (isReading || isPaused || document.hidden || !document.querySelector("[data-swap]")) return;
    isReading = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
      if (!answer.ok) { isStale = true; return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      isStale = fresh.getElementById("stale") !== null;
      for (const old of document.querySelectorAll("[data-swap]")) {
        const next = fresh.getElementById(old.id);
        if (next === null || old.innerHTML === next.innerHTML || isInUse(old)) continue;
        showTimes(next);
        old.replaceChildren(...next.childNodes);
      }
      if (!isStale) loadedAt = readAt(fresh);
    } catch {
      isStale = true;
    } finally {
      isReading = false;
      showAge();
    }
  };
  const listen = () => {
    if (source !== null || isPaused || document.hidden) return;
    source = new EventSource(body.dataset.live);
    source.addEventListener("changed", read);
    source.addEventListener("stale", () => { isStale = true; showAge(); });
    source.onerror = () => { isStale = true; showAge(); };
  };
  const deafen = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? deafen() : (listen(), read())));

  // --- zoom: a range that is drawn on a curve becomes the address ---
  let zoom = null;
  const zoomed = (since, until) => {
    const address = new URL(location.href);
    for (const [name, at] of [["since", since], ["until", until]]) {
      if (at === null) address.searchParams.delete(name);
      else address.searchParams.set(name, new Date(1000 * at).toISOString());
    }
    address.searchParams.delete("span");
    location.assign(address);
  };
  const draw = (x) => {
    const box = zoom.plot.getBoundingClientRect();
    zoom.to = Math.min(1, Math.max(0, (x - box.left) / box.width));
    zoom.mark.style.left = `${100 * Math.min(zoom.from, zoom.to)}%`;
    zoom.mark.style.width = `${100 * Math.abs(zoom.to - zoom.from)}%`;
  };
  const endZoom = () => { zoom?.mark.remove(); zoom = null; };
  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest(".zoomable .plot");
    if (plot === null || event.button !== 0 || event.target.closest("a")) return;
    const times = document.querySelector("[data-times]").dataset.times.trim().split(" ").map(Number);
    if (times.length < 2) return;
    const mark = document.createElement("div");
    mark.className = "zoom";
    plot.append(mark);
    plot.setPointerCapture(event.pointerId);
    zoom = { plot, mark, times, from: 0, to: 0 };
    draw(event.clientX);
    zoom.from = zoom.to;
    draw(event.clientX);
    event.preventDefault();
  });
  document.addEventListener("pointermove", (event) => { if (zoom !== null) draw(event.clientX); });
  document.addEventListener("pointerup", () => {
    if (zoom === null) return;
    const { times, from, to } = zoom;
    const ends = [Math.min(from, to), Math.max(from, to)];
    endZoom();
    if (ends[1] - ends[0] < 0.02) return;
    // The points of a curve are drawn at equal distances, whatever their times.
    const at = (place) => {
      const left = Math.min(times.length - 2, Math.floor(place * (times.length - 1)));
      return times[left] + (place * (times.length - 1) - left) * (times[left + 1] - times[left]);
    };
    zoomed(at(ends[0]), at(ends[1]));
  });
  document.addEventListener("pointercancel", endZoom);
  document.addEventListener("dblclick", (event) => {
    if (event.target.closest(".zoomable .plot") && new URL(location.href).searchParams.has("until")) zoomed(null, null);
  });

  // --- keys ---
  const help = document.getElementById("keys-help");
  let isGoing = false;
  const rows = () => [...document.querySelectorAll("main tbody tr")];
  const select = (step) => {
    const all = rows();
    if (all.length === 0) return;
    const now = all.findIndex((row) => row.getAttribute("aria-selected") === "true");
    const next = Math.min(all.length - 1, Math.max(0, now + step));
    for (const row of all) row.removeAttribute("aria-selected");
    all[next].setAttribute("aria-selected", "true");
    all[next].scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      document.querySelector(`nav.pages a[data-key="${CSS.escape(event.key)}"]`)?.click();
      return;
    }
    const does = {
      "/": () => { event.preventDefault(); document.getElementById("q").focus(); },
      "?": () => help.showModal(),
      g: () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
      j: () => select(1),
      k: () => select(-1),
      p: () => { isPaused = !isPaused; if (isPaused) deafen(); else { listen(); read(); } showAge(); },
      Enter: () => { if (document.activeElement === body) document.querySelector("tr[aria-selected=true] a")?.click(); },
      Escape: () => { endZoom(); for (const row of rows()) row.removeAttribute("aria-selected"); },
    }[event.key];
    does?.();
  });

  const nav = document.querySelector("nav.pages");
  const current = nav.querySelector("[aria-current]");
  if (current) nav.scrollLeft = current.offsetLeft - (nav.clientWidth - current.clientWidth) / 2;
  showTimes(document);
  showAge();
  listen();
  setInterval(() => { showAge(); if (!isPaused) showTimes(document); }, 1000);
})();
