"use strict";
(() => {
  const root = document.documentElement;

  // The theme: the system's unless the reader has chosen; the choice is kept where that is allowed.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(isDark()));
    document.dispatchEvent(new CustomEvent("vasso-theme", { detail: isDark() ? "dark" : "light" }));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("vasso-theme", root.dataset.theme); } catch (error) { /* not kept */ }
    label();
  });
  system.addEventListener("change", label);
  button.hidden = false;
  label();

  // Values of points in charts: on hovering, on touching, on focus; arrow keys go from point to point.
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
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  for (const chart of document.querySelectorAll("svg.figure")) {
    const title = chart.querySelector(":scope > title");
    const points = [...chart.querySelectorAll(".point")];
    chart.setAttribute("aria-label", title.textContent);
    title.remove(); // browsers would show it over every point
    if (!points.length) continue;
    chart.setAttribute("role", "group"); // what is inside an image is not read
    points[0].setAttribute("tabindex", "0");
    chart.addEventListener("keydown", (event) => {
      const at = points.indexOf(document.activeElement), step = steps[event.key];
      if (at < 0 || step === undefined) return;
      event.preventDefault(); // the page stays where it is
      const next = points[Math.min(Math.max(at + step, 0), points.length - 1)];
      points[at].setAttribute("tabindex", "-1"); // Tab leaves the chart and comes back here
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }
  for (const point of document.querySelectorAll(".point")) {
    const title = point.querySelector("title");
    point.dataset.tip = title.textContent;
    point.setAttribute("role", "img");
    point.setAttribute("aria-label", title.textContent);
    title.remove();
    point.addEventListener("focus", () => show(point));
    point.addEventListener("blur", hide);
    point.addEventListener("pointerenter", () => show(point));
    point.addEventListener("pointerleave", hide);
    point.addEventListener("click", () => show(point));
  }
  addEventListener("scroll", () => {
    const point = document.activeElement; // its focus may be what has scrolled the page
    if (point.matches(".point")) show(point); else hide();
  }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // What can be scrolled sideways fades at its right end until that end is reached.
  const wide = document.querySelectorAll(".scroll, .chart.wide");
  const fade = ({ target: e }) => e.classList.toggle("more", e.scrollLeft + e.clientWidth < e.scrollWidth - 2);
  const sizes = new ResizeObserver((changed) => changed.forEach(fade)); // also when it is unfolded
  for (const each of wide) {
    each.addEventListener("scroll", fade, { passive: true });
    sizes.observe(each);
  }

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
