"use strict";
(() => {
  const root = document.documentElement;

  // The theme: the system's unless the reader has chosen; the choice is kept where that is allowed.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(isDark()));
    document.dispatchEvent(new CustomEvent("vasso-theme", { detail: isDark() ? "dark" : "light" }));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("vasso-theme", root.dataset.theme); } catch (error) { /* not kept */ }
    tell();
  });
  system.addEventListener("change", tell);
  button.hidden = false;
  tell();

  // Values of points in charts: on hovering, on touching, on focus.
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (point) => {
    const box = point.getBoundingClientRect();
    const near = (other) => {
      const its = other.getBoundingClientRect();
      return Math.hypot(its.left - box.left, its.top - box.top) < 8; // one would hide the other
    };
    const chart = point.closest("svg");
    const here = [...chart.querySelectorAll(".point")].filter(near);
    tip.textContent = here.map((each) => each.dataset.tip).join("\n");
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight, gap = 8;
    const x = Math.min(Math.max(box.left + box.width / 2 - width / 2, gap), innerWidth - width - gap);
    const above = box.top - height - gap;
    tip.style.left = `${x}px`;
    tip.style.top = `${above > gap ? above : box.bottom + gap}px`;
  };
  for (const chart of document.querySelectorAll("svg.figure")) {
    const title = chart.querySelector(":scope > title");
    chart.setAttribute("aria-label", title.textContent);
    title.remove(); // browsers would show it over every point
  }
  for (const point of document.querySelectorAll(".point")) {
    const title = point.querySelector("title");
    point.dataset.tip = title.textContent;
    point.setAttribute("aria-label", title.textContent);
    title.remove();
    point.addEventListener("pointerenter", () => show(point));
    point.addEventListener("pointerleave", hide);
    point.addEventListener("click", () => show(point));
  }
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // A link into something folded unfolds it; paper shows everything.
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let place = target; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

  // Which part is being read.
  const links = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
  if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-20% 0px -70% 0px" });
    for (const id of links.keys()) watcher.observe(document.getElementById(id));
  }
})();
