/** The pipeline's chart: a row a worker, measured above predicted where there is both; zoom, pan, hover, keyboard. */
class Gantt {
  constructor(figure, tracks, labels, pipes, full) {
    this.canvas = figure.querySelector("canvas");
    this.tip = figure.querySelector(".tip");
    this.said = figure.querySelector(".said");
    this.tracks = tracks; // [{name, start, took, ...}]
    this.labels = labels;
    this.pipes = pipes;
    this.full = Math.max(1, full, ...tracks.map((track) => track.span));
    this.from = 0;
    this.to = this.full;
    this.worker = 0;
    this.chosen = null; // {track, row, event}
    this.followers = [];
    this.left = 34;
    this.top = 22;
    const each = labels.length * tracks.length;
    this.lane = each > 80 ? 9 : each > 40 ? 12 : each > 16 ? 17 : 24; // compute bar of one track
    this.below = each > 40 ? 3 : 7; // sums and messages of one track
    this.gap = each > 40 ? 2 : 6;
    this.row = tracks.length * (this.lane + this.below) + this.gap;
    this.canvas.style.height = `${this.top + labels.length * this.row + 4}px`;
    this.canvas.dataset.events = tracks.reduce((sum, track) => sum + track.events, 0);
    this.canvas.dataset.rows = labels.length;
    this.canvas.dataset.counts = JSON.stringify(tracks.map((track) => track.counts));
    this.paint = this.paint.bind(this);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    listen(this);
    CHARTS.push(this);
  }

  redraw() {
    if (!this.asked) this.asked = requestAnimationFrame(this.paint);
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * this.width;
  }

  time(x) {
    return this.from + ((x - this.left) / this.width) * (this.to - this.from);
  }

  show(from, to) {
    const span = Math.min(this.full, Math.max(to - from, Math.min(this.full, 20)));
    this.from = Math.max(0, Math.min(from, this.full - span));
    this.to = this.from + span;
    this.redraw();
    this.tell();
  }

  /** Others that show the same stretch of time, and the same worker. */
  follow(other) {
    this.followers.push(other);
  }

  tell() {
    for (const other of this.followers) if (other.from !== this.from || other.to !== this.to || !(other instanceof Gantt)) other.show(this.from, this.to);
  }

  /** Time up to another chart's end, so that both have one scale. */
  widen(full) {
    this.full = Math.max(this.full, full);
    this.show(0, this.full);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) / factor, around + (this.to - around) / factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  paint() {
    this.asked = 0;
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    this.width = Math.max(20, box.width - this.left - 4);
    this.ink = this.canvas.getContext("2d");
    this.ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ink.font = "11px system-ui, sans-serif";
    this.shades = palette();
    this.axis(box);
    this.drawn = 0;
    this.outlines = [];
    this.labels.forEach((_, row) => this.tracks.forEach((track, at) => this.drawTrack(track, row, at)));
    this.drawOutlines();
    Object.assign(this.canvas.dataset, { drawn: this.drawn, from: this.from, to: this.to, ready: "yes" });
  }

  axis(box) {
    const { ink } = this;
    ink.clearRect(0, 0, box.width, box.height);
    ink.textBaseline = "alphabetic";
    const steps = ticks(this.from, this.to, this.width / 95);
    ink.strokeStyle = this.shades.grid;
    ink.fillStyle = this.shades.soft;
    for (const t of steps) {
      const x = Math.round(this.x(t)) + 0.5;
      ink.beginPath();
      ink.moveTo(x, this.top - 5);
      ink.lineTo(x, box.height);
      ink.stroke();
      ink.textAlign = x < this.left + 30 ? "left" : x > box.width - 36 ? "right" : "center";
      ink.fillText(duration(t), x, 13);
    }
    const every = Math.max(1, Math.ceil(13 / this.row));
    ink.textAlign = "right";
    ink.textBaseline = "middle";
    this.labels.forEach((label, row) => {
      ink.fillStyle = row === this.worker ? this.shades.text : this.shades.soft;
      if (row % every === 0 || row === this.worker)
        ink.fillText(label, this.left - 6, this.top + row * this.row + (this.row - this.gap) / 2);
    });
  }

  place(row, at) {
    return this.top + row * this.row + at * (this.lane + this.below);
  }

  drawTrack(track, row, at) {
    const { ink } = this;
    const y = this.place(row, at);
    const end = Math.min(this.x(track.span), this.left + this.width);
    ink.fillStyle = this.shades.idle;
    if (end > this.left) ink.fillRect(this.left, y, end - this.left, this.lane);
    ink.textAlign = "center";
    ink.textBaseline = "middle";
    this.drawn += this.bars(track, track.rows[row].compute, y, this.lane, true, row, at);
    this.drawn += this.bars(track, track.rows[row].sums, y + this.lane + 0.5, this.below > 4 ? 3 : 1.5, false);
    const under = y + this.lane + (this.below > 4 ? 4 : 2);
    this.drawn += this.bars(track, track.rows[row].messages, under, this.below > 4 ? 2 : 1, false);
  }

  bars(track, events, y, high, labelled, row, at) {
    const { ink } = this;
    const first = firstAt(events, this.from);
    const seen = firstAfter(track, events, this.to) - first;
    const dense = seen > this.width / 3 ? new Mixture(this, y, high) : null;
    let count = 0;
    for (let k = first; k < first + seen; k++) {
      const i = events[k];
      if (track.start[i] + track.took[i] < this.from) continue;
      const low = Math.max(this.x(track.start[i]), this.left);
      const wide = Math.min(this.x(track.start[i] + track.took[i]), this.left + this.width) - low;
      count += 1;
      const name = track.names[track.code[i]];
      if (labelled && this.chosen && this.follows(track, i)) this.outlines.push([low, y, wide, high, i, track]);
      if (dense && wide < 4) {
        dense.add(low, wide, this.shades.of(name));
        continue;
      }
      ink.fillStyle = this.shades.of(name);
      ink.fillRect(low, y, wide > 3 ? wide - 0.75 : Math.max(wide, 0.4), high);
      if (!labelled) continue;
      if (name.kind === "R" && wide > 2) {
        ink.fillStyle = this.shades.of({ kind: "B", hue: name.hue });
        ink.fillRect(low, y + high - 4, wide > 3 ? wide - 0.75 : wide, 4);
      }
      const label = name.kind === "STEP" ? "step" : name.kind === "SYNC" ? "" : String(track.micro[i]);
      if (this.lane > 11 && label && wide > 5 + 6.5 * label.length) {
        ink.fillStyle = this.shades.on(name);
        ink.fillText(label, low + wide / 2, y + high / 2 + 0.5);
      }
    }
    if (dense) dense.paint();
    return count;
  }

  /** The chosen event, and the same micro-batch on every other worker. */
  follows(track, i) {
    const own = this.chosen;
    const kind = track.names[track.code[i]].kind;
    const its = own.track.names[own.track.code[own.event]].kind;
    if (kind === "STEP" || kind === "SYNC" || its === "STEP" || its === "SYNC") return i === own.event && track === own.track;
    return track.micro[i] === own.track.micro[own.event];
  }

  drawOutlines() {
    const { ink } = this;
    for (const [x, y, wide, high, i, track] of this.outlines) {
      const itself = i === this.chosen.event && track === this.chosen.track;
      ink.strokeStyle = this.shades.text;
      ink.lineWidth = itself ? 2.5 : 1;
      ink.strokeRect(x, y, Math.max(wide, 1), high);
    }
    ink.lineWidth = 1;
  }

  at(x, y) {
    const row = Math.floor((y - this.top) / this.row);
    if (row < 0 || row >= this.labels.length || x < this.left) return null;
    const inside = y - this.top - row * this.row;
    const which = Math.min(this.tracks.length - 1, Math.floor(inside / (this.lane + this.below)));
    const track = this.tracks[which];
    const low = inside - which * (this.lane + this.below) > this.lane;
    const lists = low ? [track.rows[row].sums, track.rows[row].messages] : [track.rows[row].compute];
    const time = this.time(x);
    const slack = ((this.to - this.from) / this.width) * 1.5;
    for (const list of lists) {
      for (let k = firstAt(list, time - slack); k < list.length && track.start[list[k]] <= time + slack; k++)
        if (track.start[list[k]] + track.took[list[k]] >= time - slack) return { track, row, event: list[k] };
    }
    return { track, row, event: null, time };
  }

  /** What a choice is, in words; also where the worker idles. */
  words(found) {
    const { track, row, event } = found;
    const named = this.tracks.length > 1 ? `${track.name}, ` : "";
    if (event === null) return [`Idle: ${named}worker ${this.labels[row]}`, duration(Math.max(0, found.time))];
    const name = track.names[track.code[event]];
    const whole = ["STEP", "SYNC", "COLLECTIVE"].includes(name.kind);
    const pipe = this.pipes > 1 ? ` in pipe ${name.pipe}` : "";
    const head = `${WORDS[name.kind]}: stage ${name.stage}${pipe}${whole ? "" : `, micro-batch ${track.micro[event]}`}`;
    const start = track.start[event];
    const tail = `${named}worker ${this.labels[row]}: ${duration(track.took[event])}, from ${duration(start)} to ${duration(start + track.took[event])}`;
    return [head, tail, ...this.beside(found), ...this.waited(found)];
  }

  waited({ track, row, event }) {
    const list = track.rows[row].compute;
    const k = list.indexOf(event);
    if (k < 0) return [];
    const before = k ? track.start[list[k - 1]] + track.took[list[k - 1]] : 0;
    const idle = track.start[event] - before;
    return idle > 0 ? [`idle for ${duration(idle)} before it`] : [];
  }

  beside({ track, row, event }) {
    const other = this.tracks.find((one) => one !== track);
    if (!other) return [];
    const name = track.names[track.code[event]];
    const twin = other.rows[row].all.find((i) => {
      const its = other.names[other.code[i]];
      return its.kind === name.kind && its.stage === name.stage && its.pipe === name.pipe && other.micro[i] === track.micro[event];
    });
    return twin === undefined ? [] : [`${other.name}: ${duration(other.took[twin])}`];
  }

  choose(found, pointer) {
    const same = this.chosen && found && this.chosen.event === found.event && this.chosen.track === found.track;
    this.chosen = found && found.event !== null ? found : null;
    this.canvas.dataset.chosen = found ? this.words(found).join("; ") : "";
    if (!same) this.redraw();
    if (!found) {
      this.tip.hidden = true;
      return;
    }
    const [head, ...rest] = this.words(found);
    this.said.textContent = [head, ...rest].join(" · ");
    if (!pointer) {
      this.tip.hidden = true;
      return;
    }
    showTip(this.tip, this.canvas, [head, ...rest], pointer.x, pointer.y);
  }

  setWorker(row) {
    this.worker = Math.max(0, Math.min(this.labels.length - 1, row));
    this.redraw();
    this.tell();
  }
}

/** The first event of a list that lasts until `time` or longer. */
function firstAt(list, time) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list.reach[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The first event of a list that starts after `time`; lists are in the order of starts. */
function firstAfter(track, list, time) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track.start[list[middle]] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Bars narrower than pixels: each column of pixels is the mixture of what happens in it, so that no pattern arises that is none. */
class Mixture {
  constructor(chart, y, high) {
    this.scale = window.devicePixelRatio || 1;
    Object.assign(this, { ink: chart.ink, left: chart.left, y, high, shades: new Map() });
    this.columns = Math.ceil(chart.width * this.scale) + 1;
  }

  add(low, wide, shade) {
    if (!this.shades.has(shade)) this.shades.set(shade, new Float64Array(this.columns));
    const shares = this.shades.get(shade);
    const from = (low - this.left) * this.scale;
    const to = from + wide * this.scale;
    for (let at = Math.floor(from); at <= to && at < this.columns; at++) shares[at] += Math.max(0, Math.min(to, at + 1) - Math.max(from, at));
  }

  paint() {
    for (let at = 0; at < this.columns; at++) {
      let covered = 1; // what is there already: idle, as far as nothing else happens
      for (const shares of this.shades.values()) covered -= shares[at];
      covered = Math.max(0, covered);
      for (const [shade, shares] of this.shades) {
        if (!shares[at]) continue;
        covered += shares[at];
        this.ink.globalAlpha = Math.min(1, shares[at] / covered);
        this.ink.fillStyle = shade;
        this.ink.fillRect(this.left + at / this.scale, this.y, 1 / this.scale, this.high);
      }
    }
    this.ink.globalAlpha = 1;
  }
}

function palette() {
  const pipes = [0, 1, 2, 3].map((pipe) => ["light", "middle", "strong"].map((shade) => colour(`--pipe${pipe}-${shade}`)));
  const grey = colour("--update");
  const wire = colour("--wire");
  const sum = colour("--sum");
  const shade = ({ kind, hue }) => {
    if (kind === "SEND") return wire;
    if (kind === "COLLECTIVE") return sum;
    if (kind === "STEP" || kind === "SYNC") return grey;
    return pipes[hue % 4][kind === "F" || kind === "R" ? 0 : kind === "W" ? 1 : 2];
  };
  return {
    of: shade, on: ({ kind }) => (kind === "F" || kind === "R" || kind === "W" ? "#111" : "#fff"),
    idle: colour("--idle"), grid: colour("--grid"), soft: colour("--soft"), text: colour("--text"),
  };
}
