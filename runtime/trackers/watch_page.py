"""The page of a watched run: one file that asks nobody but the process that serves it."""

from __future__ import annotations

POLICY = "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>A run by shardwright</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark; --page: #fff; --panel: #f6f7f9; --text: #16191d; --soft: #525a66; --grid: #cfd5dc;
  --line: #0b5cad; --band: #cfe3f5; --late: #b42318; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #14171b; --panel: #1d2127; --text: #eceff3; --soft: #a9b3bf;
  --grid: #3a424d; --line: #7cbcff; --band: #23384d; --late: #ff8a7a; }} }}
body {{ margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1100px; margin: 0 auto; padding: 20px; }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 26px 0 4px; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; margin: 0; }}
dl > div {{ background: var(--panel); border-radius: 8px; padding: 8px 12px; }}
dt {{ color: var(--soft); font-size: 0.85rem; }}
dd {{ margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }}
figure {{ margin: 0; position: relative; }}
.most, .least, .tip {{ position: absolute; left: 8px; color: var(--soft); font-size: 0.8rem; pointer-events: none; }}
.most, .tip {{ top: 2px; }}
.least {{ top: 158px; }}
.tip {{ background: var(--page); color: var(--text); border-radius: 4px; padding: 0 6px; white-space: nowrap; }}
.tip:empty {{ display: none; }}
figcaption {{ color: var(--soft); font-size: 0.9rem; }}
svg {{ display: block; width: 100%; height: 180px; background: var(--panel); border-radius: 8px; }}
.line {{ fill: none; stroke: var(--line); stroke-width: 1.5; vector-effect: non-scaling-stroke; }}
.mean {{ stroke: var(--soft); stroke-dasharray: 4 3; vector-effect: non-scaling-stroke; }}
.band {{ fill: var(--band); }}
.late {{ fill: var(--late); }}
#ranks {{ height: auto; min-height: 24px; }}
</style>
</head>
<body>
<main>
<h1 id="name"></h1>
<p id="said" role="status">waiting for the first step</p>
<dl>
<div><dt>state</dt><dd id="state"></dd></div>
<div><dt>step</dt><dd id="step"></dd></div>
<div><dt>loss</dt><dd id="loss"></dd></div>
<div><dt>last step took</dt><dd id="seconds"></dd></div>
<div><dt>predicted</dt><dd id="predicted"></dd></div>
</dl>
<h2>Time of steps</h2>
<figure><svg id="times" viewBox="0 0 1000 180" preserveAspectRatio="none" role="img" aria-label="Seconds of each step"></svg>
<span class="most" id="times-most"></span><span class="least" id="times-least"></span><span class="tip" id="times-tip"></span>
<figcaption id="times-said">The band is the predicted range, the dashed line the prediction.</figcaption></figure>
<h2>Loss</h2>
<figure><svg id="losses" viewBox="0 0 1000 180" preserveAspectRatio="none" role="img" aria-label="Loss of each step"></svg>
<span class="most" id="losses-most"></span><span class="least" id="losses-least"></span><span class="tip" id="losses-tip"></span>
<figcaption id="losses-said"></figcaption></figure>
<h2>Ranks by step</h2>
<figure><svg id="ranks" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label="Lateness of each rank by step"></svg>
<span class="tip" id="ranks-tip"></span>
<figcaption>A row is a rank and a column a step. The redder, the longer beyond the predicted range.</figcaption></figure>
</main>
<script nonce="{nonce}">
(() => {{
  const at = (id) => document.getElementById(id);
  const put = (id, text) => {{ if (at(id).textContent !== text) at(id).textContent = text; }};
  const time = (s) => s == null ? "" : s < 1e-3 ? (s * 1e6).toPrecision(3) + " µs" : s < 1 ? (s * 1e3).toPrecision(3) + " ms" : s.toPrecision(3) + " s";
  const draw = (svg, kind, given) => {{
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
    svg.append(made);
  }};
  const told = {{}}; // by chart: what the pointer is told at a share of its width and height
  for (const name of ["times", "losses", "ranks"]) {{
    const tip = at(name + "-tip");
    const figure = at(name).parentElement;
    figure.addEventListener("pointermove", (event) => {{
      const box = at(name).getBoundingClientRect(), x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
      tip.textContent = told[name] && y >= 0 && y < 1 ? told[name](x, y) : "";
      tip.style.left = Math.max(0, Math.min(x * box.width + 8, box.width - tip.offsetWidth)) + "px";
    }});
    figure.addEventListener("pointerleave", () => (tip.textContent = ""));
  }}
  const chart = (svg, numbers, values, written, low, high, middle) => {{
    svg.replaceChildren();
    if (!values.length) return;
    const usual = values.length > 3 && svg.id === "times" ? values.slice(1) : values; // the first step warms up
    const most = Math.max(...usual, high ?? -Infinity) * 1.05, least = Math.min(...usual, low ?? Infinity) * 0.95;
    const y = (v) => (170 - (160 * (Math.min(v, most) - least)) / (most - least || 1)).toFixed(2);
    put(svg.id + "-most", written(most)); put(svg.id + "-least", written(least));
    told[svg.id] = (x) => {{
      const i = Math.max(0, Math.min(values.length - 1, Math.round(x * (values.length - 1))));
      return `step ${{numbers[i]}}: ${{written(values[i])}}`;
    }};
    if (high != null) {{
      draw(svg, "rect", {{ class: "band", x: 0, width: 1000, y: y(high), height: Math.max(1, y(low) - y(high)) }});
      draw(svg, "line", {{ class: "mean", x1: 0, x2: 1000, y1: y(middle), y2: y(middle) }});
    }}
    const step = 1000 / Math.max(1, values.length - 1);
    draw(svg, "polyline", {{ class: "line", points: values.map((v, i) => (i * step).toFixed(1) + "," + y(v)).join(" ") }});
  }};
  const heat = (svg, numbers, rows, high) => {{
    const wide = Math.max(1, ...rows.map((row) => row.length)), tall = Math.min(16, Math.max(2, 320 / Math.max(1, rows.length)));
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 1000 ${{tall * rows.length}}`);
    svg.style.height = tall * rows.length + "px";
    rows.forEach((row, r) => row.forEach((s, i) => {{
      const late = Math.min(1, Math.max(0, s / high - 1));
      if (late > 0) draw(svg, "rect", {{ class: "late", x: (1000 * i) / wide, y: r * tall, width: 1000 / wide, height: tall - 0.5, "fill-opacity": late.toFixed(2) }});
    }}));
    svg.dataset.late = svg.childElementCount;
    told.ranks = (x, y) => {{
      const r = Math.min(rows.length - 1, Math.floor(y * rows.length)), i = Math.min(wide - 1, Math.floor(x * wide));
      return rows[r]?.[i] == null ? "" : `rank ${{r}}, step ${{numbers.at(i - wide)}}: ${{time(rows[r][i])}}`;
    }};
  }};
  const source = new EventSource("events");
  source.onmessage = (message) => {{
    const run = JSON.parse(message.data), last = run.steps.at(-1), plan = run.predicted;
    put("name", run.name); put("state", run.state); put("predicted", time(plan.step));
    put("step", (last ? last[0] : 0) + " of " + run.all);
    if (last) {{
      put("loss", last[1].toPrecision(5)); put("seconds", time(last[2]));
      put("said", last[2] > plan.high ? "the last step was later than predicted" : "as predicted, or faster");
      put("losses-said", "From " + run.steps[0][1].toPrecision(5) + " at step " + run.steps[0][0] + " to " + last[1].toPrecision(5) + ".");
    }}
    const numbers = run.steps.map((s) => s[0]);
    chart(at("times"), numbers, run.steps.map((s) => s[2]), time, plan.low, plan.high, plan.step);
    chart(at("losses"), numbers, run.steps.map((s) => s[1]), (v) => v.toPrecision(4));
    heat(at("ranks"), numbers, run.ranks, plan.high);
    document.body.dataset.step = last ? last[0] : 0;
    if (run.ended) {{
      source.close();
      put("said", "the run has ended");
      if (run.report) location.replace("report");
    }}
  }};
  source.onerror = () => {{ source.close(); put("said", "the process that served this page has ended"); }};
}})();
</script>
</body>
</html>
"""
