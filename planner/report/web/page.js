/** Bytes over time of one worker among the others, against its limit; the same stretch of time as the chart above. */
class MemoryChart {
  constructor(figure, gantt, lines, limits, labels) {
    this.canvas = figure.querySelector("canvas");
    this.said = figure.querySelector(".said");
    this.pick = figure.querySelector("select");
    Object.assign(this, { gantt, lines, limits, labels });
    this.canvas.dataset.samples = lines.reduce((sum, line) => sum + line.when.length, 0);
    labels.forEach((label, row) => this.pick.append(new Option(`worker ${label}`, row)));
    this.pick.addEventListener("change", () => gantt.setWorker(Number(this.pick.value)));
    this.peaks = lines.map((line) => line.size.reduce((a, b) => Math.max(a, b), 0));
    const most = Math.max(...this.peaks);
    // Where hardly anything of a device is used, a scale up to its limit would show a flat line.
    this.beyond = most < 0.25 * Math.min(...limits);
    this.top = this.beyond ? most * 1.35 : Math.max(most, ...limits) * 1.06;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    CHARTS.push(this);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  redraw() {
    if (!this.asked) this.asked = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.asked = 0;
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    const ink = (this.ink = this.canvas.getContext("2d"));
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.font = "11px system-ui, sans-serif";
    Object.assign(this, { left: 58, low: box.height - 20, width: Math.max(20, box.width - 62) });
    this.axes(box);
    const own = this.gantt.worker;
    this.lines.forEach((line, row) => row !== own && this.line(line, colour("--faint"), 1));
    this.line(this.lines[own], colour("--pipe0-strong"), 2);
    this.limit(box, own);
    const peak = this.peaks[own];
    this.pick.value = own;
    this.said.textContent = `Worker ${this.labels[own]}: at most ${bytes(peak)} of ${bytes(this.limits[own])}, ${share(peak / this.limits[own])}.`;
    Object.assign(this.canvas.dataset, { peak, limit: this.limits[own], worker: own });
  }

  y(size) {
    return this.low - (size / this.top) * (this.low - 8);
  }

  axes(box) {
    const { ink, gantt } = this;
    ink.clearRect(0, 0, box.width, box.height);
    ink.strokeStyle = colour("--grid");
    ink.fillStyle = colour("--soft");
    ink.textBaseline = "middle";
    ink.textAlign = "right";
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(this.top) / Math.log(1024)));
    for (const size of ticks(0, this.top / unit, 5)) {
      const y = Math.round(this.y(size * unit)) + 0.5;
      this.stroke([[this.left, y], [this.left + this.width, y]]);
      ink.fillText(bytes(size * unit), this.left - 5, y);
    }
    ink.textAlign = "center";
    const times = ticks(gantt.from, gantt.to, this.width / 95);
    for (const t of times) ink.fillText(duration(t), Math.min(Math.max(this.x(t), this.left + 14), box.width - 22), this.low + 11);
  }

  x(time) {
    return this.left + ((time - this.gantt.from) / (this.gantt.to - this.gantt.from)) * this.width;
  }

  stroke(points) {
    this.ink.beginPath();
    points.forEach(([x, y], i) => (i ? this.ink.lineTo(x, y) : this.ink.moveTo(x, y)));
    this.ink.stroke();
  }

  line({ when, size }, shade, wide) {
    const { ink } = this;
    ink.save();
    ink.beginPath();
    ink.rect(this.left, 0, this.width, this.low + 1);
    ink.clip();
    ink.strokeStyle = shade;
    ink.lineWidth = wide;
    const points = [];
    for (let i = 0; i < when.length; i++) {
      const x = this.x(when[i]);
      if (points.length) points.push([x, points[points.length - 1][1]]);
      points.push([x, this.y(size[i])]);
    }
    if (points.length) points.push([this.x(this.gantt.full), points[points.length - 1][1]]);
    this.stroke(points);
    ink.restore();
  }

  limit(box, own) {
    const { ink } = this;
    const y = this.beyond ? 8 : this.y(this.limits[own]);
    ink.save();
    ink.strokeStyle = ink.fillStyle = colour("--alarm");
    ink.textAlign = "right";
    ink.textBaseline = "top";
    ink.fillText(this.beyond ? `limit ${bytes(this.limits[own])}, far above ↑` : "limit", box.width - 6, y + 3);
    if (this.beyond) {
      ink.restore();
      return;
    }
    ink.lineWidth = 1.5;
    ink.setLineDash([6, 4]);
    this.stroke([[this.left, y], [this.left + this.width, y]]);
    ink.restore();
  }
}

const PERFETTO = "https://ui.perfetto.dev";

/** The trace as text, which the page holds packed. */
async function traceText() {
  return new TextDecoder().decode(await inflate(PAGE.traced));
}

/** Perfetto's page answers a ping once it is there; the trace then goes from tab to tab, and to no server. */
async function openInPerfetto() {
  const other = window.open(PERFETTO);
  if (!other) return;
  const buffer = (await inflate(PAGE.traced)).slice(0);
  const asking = setInterval(() => other.postMessage("PING", PERFETTO), 100);
  addEventListener("message", function answered(event) {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    clearInterval(asking);
    removeEventListener("message", answered);
    other.postMessage({ perfetto: { buffer, title: document.title, fileName: PAGE.trace } }, PERFETTO);
  });
}

async function gantt(figure, charted, pipes, full = 0) {
  const { workers } = charted;
  const read = (packed) => readTrack(packed, { pipes, workers });
  const tracks = await Promise.all(charted.tracks.map(async (packed) => ({ ...(await read(packed)), name: packed.name })));
  return new Gantt(figure, tracks, workers, pipes, full);
}

/** Another plan's chart over the same stretch of time, so that lengths compare; moving one moves both. */
async function drawBeside(own) {
  const figure = document.getElementById("other");
  if (!PAGE.beside || !figure) return;
  const other = await gantt(figure, PAGE.beside, PAGE.beside.pipes, own.full);
  own.widen(other.full);
  own.follow(other);
  other.follow(own);
}

async function main() {
  const own = await gantt(document.getElementById("timeline"), PAGE, PAGE.pipes);
  const acts = {
    in: () => own.zoom(2), out: () => own.zoom(0.5), all: () => own.show(0, own.full),
    left: () => own.pan(-0.25), right: () => own.pan(0.25),
    trace: async () => save(PAGE.trace, "application/json", await traceText()), perfetto: openInPerfetto,
  };
  for (const button of document.querySelectorAll("[data-act]")) button.addEventListener("click", acts[button.dataset.act]);
  const beneath = document.getElementById("memory-chart");
  if (PAGE.memory && beneath) {
    const chart = new MemoryChart(beneath, own, await readLines(PAGE.memory), PAGE.limits, PAGE.workers);
    own.follow({ show: () => chart.redraw() });
  }
  await drawBeside(own);
  await drawHeats();
  const root = document.documentElement;
  addEventListener("beforeprint", () => { // paper is white, whatever the screen is
    root.dataset.print = "yes";
    CHARTS.forEach((chart) => chart.paint());
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    CHARTS.forEach((chart) => chart.redraw());
  });
  root.dataset.ready = "yes";
}

main();
