/** How a chart is steered: pointer, wheel, touch, buttons and keys. */
function listen(chart) {
  const { canvas } = chart;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const held = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, place(event));
    canvas.dataset.held = "yes";
  });
  const release = (event) => {
    held.delete(event.pointerId);
    if (!held.size) delete canvas.dataset.held;
  };
  canvas.addEventListener("pointerup", (event) => {
    release(event);
    const found = chart.at(place(event).x, place(event).y);
    if (found) chart.setWorker(found.row);
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => held.size || chart.choose(null));
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = held.get(event.pointerId);
    if (!before) {
      chart.choose(chart.at(now.x, now.y), now);
      return;
    }
    drag(chart, held, event.pointerId, before, now);
    held.set(event.pointerId, now);
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) {
      event.preventDefault();
      chart.zoom(Math.exp(-(event.deltaY || event.deltaX) / 250), chart.time(place(event).x));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      chart.pan(event.deltaX / chart.width);
    }
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => chart.zoom(4, chart.time(place(event).x)));
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(chart, event);
  });
}

function drag(chart, held, id, before, now) {
  const scale = (chart.to - chart.from) / chart.width;
  const other = [...held].find(([key]) => key !== id);
  if (!other) {
    const by = (before.x - now.x) * scale;
    chart.show(chart.from + by, chart.to + by);
    return;
  }
  const apart = Math.abs(before.x - other[1].x);
  const middle = chart.time((now.x + other[1].x) / 2);
  if (apart > 4) chart.zoom(Math.max(0.2, Math.abs(now.x - other[1].x) / apart), middle);
}

/** To the event before or after, and into view. */
function walk(chart, by) {
  const own = chart.chosen && chart.chosen.row === chart.worker ? chart.chosen : null;
  const track = own ? own.track : chart.tracks[0];
  const list = track.rows[chart.worker].compute;
  if (!list.length) return;
  const last = own ? list.indexOf(own.event) : by > 0 ? firstAt(list, chart.from) - 1 : firstAt(list, chart.to);
  const event = list[Math.max(0, Math.min(list.length - 1, last + by))];
  const span = chart.to - chart.from;
  const middle = track.start[event] + track.took[event] / 2;
  if (track.start[event] < chart.from || track.start[event] + track.took[event] > chart.to) chart.show(middle - span / 2, middle + span / 2);
  chart.choose({ track, row: chart.worker, event });
}

function toWorker(chart, by) {
  const before = chart.chosen;
  chart.setWorker(chart.worker + by);
  if (!before) {
    chart.said.textContent = `Worker ${chart.labels[chart.worker]}`;
    return;
  }
  const list = before.track.rows[chart.worker].compute;
  if (!list.length) return;
  const event = list[Math.min(list.length - 1, firstAt(list, before.track.start[before.event]))];
  chart.choose({ track: before.track, row: chart.worker, event });
}

const centre = (chart) => (chart.chosen ? chart.chosen.track.start[chart.chosen.event] + chart.chosen.track.took[chart.chosen.event] / 2 : undefined);

const KEYS = {
  ArrowLeft: (chart, event) => (event.shiftKey ? chart.pan(-0.25) : walk(chart, -1)),
  ArrowRight: (chart, event) => (event.shiftKey ? chart.pan(0.25) : walk(chart, 1)),
  ArrowUp: (chart) => toWorker(chart, -1),
  ArrowDown: (chart) => toWorker(chart, 1),
  "+": (chart) => chart.zoom(2, centre(chart)),
  "=": (chart) => chart.zoom(2, centre(chart)),
  "-": (chart) => chart.zoom(0.5, centre(chart)),
  0: (chart) => chart.show(0, chart.full),
  Home: (chart) => chart.show(0, chart.to - chart.from),
  End: (chart) => chart.show(chart.full - (chart.to - chart.from), chart.full),
  Escape: (chart) => chart.choose(null),
};
