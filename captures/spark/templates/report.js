"use strict";
// One time axis for all charts: --a is where the shown part begins, --w how wide it is, as shares of the whole.
(() => {
  const page = document.getElementById("story"), axes = [...document.querySelectorAll(".axis")];
  if (!page || !axes.length) return;
  const begin = +page.dataset.begin, span = +page.dataset.end - begin;
  const least = Math.min(1, 1 / span);  // a millisecond
  let from = 0, width = 1;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5,
                 72e5, 216e5, 432e5, 864e5];
  const text = (ms, step) => new Date(ms).toISOString().slice(...(step < 1e3 ? [11, 23] : step < 864e5 ? [11, 19] : [0, 10]));
  function show(a, w) {
    width = Math.min(1, Math.max(least, w));
    from = Math.min(1 - width, Math.max(0, a));
    page.style.setProperty("--a", from);
    page.style.setProperty("--w", width);
    const shown = width * span, room = Math.max(2, axes[0].clientWidth / 95);
    const step = steps.find(each => shown / each <= room) || shown;
    const first = Math.ceil((begin + from * span) / step) * step;
    for (const axis of axes) {
      axis.replaceChildren();
      for (let at = first; at <= begin + (from + width) * span; at += step) {
        const tick = document.createElement("span");
        tick.style.setProperty("--t", (at - begin) / span);
        tick.textContent = text(at, step);
        axis.append(tick);
      }
    }
    page.classList.toggle("zoomed", width < 1);
  }
  const zoom = (factor, at = 0.5) => show(from + width * at * (1 - factor), width * factor);
  const pan = share => show(from + width * share, width);
  const actions = {in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25), all: () => show(0, 1)};
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      if (button.dataset.zoom !== "to") return actions[button.dataset.zoom]();
      const a = +button.dataset.from, b = +button.dataset.until, edge = Math.max((b - a) * 0.2, 2e-4);
      show(a - edge, b - a + 2 * edge);
      document.getElementById("timeline").scrollIntoView();
    });
  }
  const keys = {"+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all"};
  for (const chart of document.querySelectorAll(".chart")) {
    chart.tabIndex = 0;
    chart.setAttribute("aria-label", "Chart on the common time axis: + and - zoom, arrows move, 0 shows all");
    chart.addEventListener("keydown", event => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[action]();
    });
    const share = event => {
      const box = chart.querySelector(".track").getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    chart.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.shiftKey) return;  // the page scrolls
      event.preventDefault();
      zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, share(event));
    }, {passive: false});
    let dragged = null;
    chart.addEventListener("pointerdown", event => {
      if (event.button === 0 && event.pointerType === "mouse" && !event.target.closest("a")) dragged = share(event);
    });
    chart.addEventListener("pointerup", event => {
      if (dragged === null) return;
      const [a, b] = [dragged, share(event)].sort((x, y) => x - y);
      dragged = null;
      if (b - a > 0.01) show(from + width * a, width * (b - a));
    });
    chart.addEventListener("dblclick", () => show(0, 1));
  }
  document.body.classList.add("live");
  addEventListener("resize", () => show(from, width));
  show(0, 1);
})();
