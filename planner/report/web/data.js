"use strict";

const PAGE = JSON.parse(document.getElementById("data").textContent);
const CHARTS = []; // all that are drawn, to be drawn again for paper
const COMPUTE = new Set(["F", "B", "I", "W", "R", "STEP", "SYNC"]);
const WORDS = {
  F: "Forward", B: "Backward", I: "Input half of the backward", W: "Weight half of the backward",
  R: "Recomputation", STEP: "Update", SYNC: "Gradient sum starts", SEND: "Message", COLLECTIVE: "Gradient sum",
};

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Rows of events; each row's compute, sums and messages apart, since they are drawn beside each other. */
async function readTrack(packed, { pipes, workers }) {
  const n = packed.events;
  const raw = await inflate(packed.columns);
  const start = new Float64Array(raw, 0, n);
  const took = new Float64Array(raw, 8 * n, n);
  const code = new Int32Array(raw, 16 * n, n);
  const micro = new Int32Array(raw, 20 * n, n);
  for (let i = 1; i < n; i++) start[i] += start[i - 1];
  const names = packed.names.map(([kind, stage, pipe]) => ({ kind, stage, pipe, hue: pipes > 1 ? pipe : Math.floor(stage / workers.length) }));
  const counts = {};
  const rows = [];
  let at = 0;
  for (const size of packed.rows) {
    const row = { compute: [], sums: [], messages: [], all: [] };
    for (const end = at + size; at < end; at++) {
      const name = names[code[at]];
      counts[name.kind] = (counts[name.kind] || 0) + 1;
      row.all.push(at);
      (COMPUTE.has(name.kind) ? row.compute : name.kind === "SEND" ? row.messages : row.sums).push(at);
    }
    for (const list of [row.compute, row.sums, row.messages]) list.reach = reachOf(list, start, took);
    rows.push(row);
  }
  return { start, took, code, micro, names, rows, counts, events: n, span: packed.span };
}

/** Until when anything up to each event lasts: messages of several channels do not end in the order of their starts. */
function reachOf(list, start, took) {
  let last = -Infinity;
  return Float64Array.from(list, (i) => (last = Math.max(last, start[i] + took[i])));
}

async function readLines(packed) {
  const total = packed.rows.reduce((sum, size) => sum + size, 0);
  const raw = await inflate(packed.columns);
  const when = new Float64Array(raw, 0, total);
  const size = new Float64Array(raw, 8 * total, total);
  const rows = [];
  let at = 0;
  for (const count of packed.rows) {
    for (let i = at + 1; i < at + count; i++) {
      when[i] += when[i - 1];
      size[i] += size[i - 1];
    }
    rows.push({ when: when.subarray(at, at + count), size: size.subarray(at, at + count) });
    at += count;
  }
  return rows;
}

function four(value) {
  const text = value.toPrecision(4);
  return text.includes("e") ? String(Math.round(value)) : String(Number(text));
}

function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (Math.abs(ns) >= size) return `${four(ns / size)} ${unit}`;
  return ns ? `${Math.round(ns)} ns` : "0";
}

function bytes(size) {
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(size) >= scale) return `${four(size / scale)} ${unit}`;
  return `${Math.round(size)} B`;
}

function share(part) {
  return part > 0 && part < 0.001 ? "under 0.1 %" : `${(100 * part).toFixed(1)} %`;
}

/** Ticks at 1, 2 or 5 times a power of ten. */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) || power * 10;
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
  return found;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
