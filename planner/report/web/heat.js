/** A matrix of shares as colours: a row a rank or worker, time or steps to the right; asked by pointer and keys. */
class Heat {
  constructor(figure, found, { labels, words, ends, shade }) {
    this.canvas = figure.querySelector("canvas");
    this.tip = figure.querySelector(".tip");
    this.said = figure.querySelector(".said");
    Object.assign(this, { ...found, labels, words, ends, shade, left: 34, foot: 18, chosen: null });
    this.tall = Math.max(4, Math.min(16, Math.floor(360 / this.rows)));
    this.canvas.style.height = `${this.rows * this.tall + this.foot}px`;
    this.canvas.dataset.rows = this.rows;
    this.canvas.dataset.columns = this.columns;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    CHARTS.push(this);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.at(event), event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** NaN where nothing is known. */
  share(row, column) {
    const found = this.values[row * this.columns + column];
    return found === 65535 ? NaN : found / 1000;
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
    this.width = Math.max(20, box.width - this.left - 4);
    const ink = this.canvas.getContext("2d");
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.font = "11px system-ui, sans-serif";
    ink.fillStyle = colour("--idle");
    ink.fillRect(this.left, 0, this.width, this.rows * this.tall);
    const marks = { calm: colour("--pipe0-middle"), hot: colour("--alarm") };
    const together = Math.max(1, Math.floor(this.columns / this.width)); // of columns that share a pixel the worst counts
    let hot = 0;
    for (let row = 0; row < this.rows; row++)
      for (let from = 0; from < this.columns; from += together) {
        let most = NaN;
        for (let at = from; at < Math.min(from + together, this.columns); at++) {
          const share = this.share(row, at);
          if (!(most >= share)) most = share;
        }
        const [mark, strength] = this.shade(most);
        if (mark === "hot") hot += 1;
        if (!mark || !strength) continue;
        ink.globalAlpha = strength;
        ink.fillStyle = marks[mark];
        const left = Math.round(this.x(from)); // whole pixels: cells neither overlap nor leave a gap
        ink.fillRect(left, row * this.tall, Math.max(1, Math.round(this.x(from + together)) - left), this.tall - 0.5);
      }
    ink.globalAlpha = 1;
    this.axes(ink, box);
    if (this.chosen) {
      ink.strokeStyle = colour("--text");
      ink.lineWidth = 2;
      const { row, column } = this.chosen;
      ink.strokeRect(this.x(column), row * this.tall, Math.max(3, this.x(column + 1) - this.x(column)), this.tall);
    }
    Object.assign(this.canvas.dataset, { hot, ready: "yes" });
  }

  axes(ink, box) {
    ink.fillStyle = colour("--soft");
    ink.textBaseline = "middle";
    ink.textAlign = "right";
    const every = Math.max(1, Math.ceil(13 / this.tall));
    for (let row = 0; row < this.rows; row += every) ink.fillText(this.labels[row], this.left - 6, (row + 0.5) * this.tall);
    const under = box.height - this.foot / 2;
    ink.textAlign = "left";
    ink.fillText(this.ends[0], this.left, under);
    ink.textAlign = "right";
    ink.fillText(this.ends[1], this.left + this.width, under);
  }

  x(column) {
    return this.left + (Math.min(column, this.columns) / this.columns) * this.width;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / this.tall);
    const column = Math.floor(((event.clientX - box.left - this.left) / this.width) * this.columns);
    return row >= 0 && row < this.rows && column >= 0 && column < this.columns ? { row, column } : null;
  }

  choose(found, pointer) {
    this.tip.hidden = !found || !pointer;
    if (!found) return;
    const share = this.share(found.row, found.column);
    const text = this.words(found.row, found.column, share);
    this.said.textContent = this.canvas.dataset.chosen = text;
    if (!pointer) {
      this.chosen = found;
      this.redraw();
      return;
    }
    showTip(this.tip, this.canvas, [text], pointer.offsetX, pointer.offsetY);
  }

  key(event) {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const { row, column } = this.chosen || { row: by[0] < 0 ? 1 : -Math.max(0, by[0]), column: by[1] < 0 ? 1 : -Math.max(0, by[1]) };
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    this.choose({ row: within(row + by[0], this.rows), column: within(column + by[1], this.columns) });
  }
}

async function readHeat(packed) {
  return { rows: packed.rows, columns: packed.columns, values: new Uint16Array(await inflate(packed.values)) };
}

/** Beside the pointer, in the figure, by its own width. */
function showTip(tip, canvas, [head, ...rest], x, y) {
  const strong = Object.assign(document.createElement("b"), { textContent: head });
  tip.replaceChildren(strong, ...rest.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
  tip.hidden = false;
  tip.style.left = "0"; // its own width, not what is left of the line
  const { offsetLeft, offsetTop, offsetWidth } = canvas;
  tip.style.left = `${offsetLeft + Math.max(0, Math.min(x + 14, offsetWidth - tip.offsetWidth))}px`;
  tip.style.top = `${offsetTop + y + 18}px`;
}

/** Late is red: up to a tenth over its prediction nothing is said, and twice its prediction is as red as it gets. */
const lateness = (share) => (share > 1.1 ? ["hot", Math.min(1, 0.15 + (share - 1.1) / 0.9)] : share >= 0 ? ["calm", 0.12] : [null, 0]);
const fullness = (share) => (share > 0.92 ? ["hot", 0.9] : share > 0 ? ["calm", 0.1 + 0.85 * share] : [null, 0]);

async function drawHeats() {
  const late = document.getElementById("late");
  if (PAGE.late && late) {
    const { ranks, steps } = PAGE.late;
    const words = (row, column, share) =>
      `Rank ${ranks[row]}, step ${steps[column]}: ` + (share >= 0 ? `${share.toFixed(2)} of its prediction` : "not recorded");
    const ends = [`step ${steps[0]}`, `step ${steps[steps.length - 1]}`];
    new Heat(late, await readHeat(PAGE.late), { labels: ranks, words, ends, shade: lateness });
  }
  const filled = document.getElementById("filled");
  if (PAGE.filled && filled) {
    const { span, columns } = PAGE.filled;
    const words = (row, column, part) => `Worker ${PAGE.workers[row]} at ${duration((column / columns) * span)}: ${share(part)} of its limit`;
    new Heat(filled, await readHeat(PAGE.filled), { labels: PAGE.workers, words, ends: ["0", duration(span)], shade: fullness });
  }
}
