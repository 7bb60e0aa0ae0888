"""The report: one HTML file that needs no network and no other file."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import numpy as np

from planner.report import sections, sections_plan
from planner.report.contents import Contents
from planner.report.timeline_rows import deflated, filled, heat, lines, packed
from planner.show import escaped

_SCRIPTS = ("data.js", "gantt.js", "heat.js", "controls.js", "page.js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


def render(found: Contents) -> str:
    title = f"{found.plan.model.workload}: a plan by shardwright"
    scripts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header>{sections.head(found)}</header>
<main>{_body(found)}</main>
<footer>Made by shardwright; this file is whole in itself and asks nothing of the network.</footer>
<script type="application/json" id="data">{_json(_data(found))}</script>
<script>(() => {{
{scripts}
}})();</script>
</body>
</html>
"""


def _body(found: Contents) -> str:
    parts = [sections.measured(found, found.run)] if found.run is not None else []
    parts += [sections.timeline(found), sections_plan.beside(found)]
    parts += [sections.memory_section(found), sections_plan.rivals(found), sections_plan.frontier(found)]
    parts += [sections_plan.model(found), sections_plan.certificate(found), sections_plan.next_steps(found)]
    return "".join([*parts, sections_plan.provenance(found)])


def _data(found: Contents) -> dict[str, object]:
    file_name = re.sub(r"[^A-Za-z0-9]+", "-", found.plan.model.workload).strip("-")
    data: dict[str, object] = {
        **_charted(found),
        "pipes": len(found.plan.schedule.place),
        "trace": f"{file_name or 'plan'}-trace.json",
    }
    if found.most_of_a_trace <= sections.MOST_OF_A_TRACE:
        data["traced"] = deflated(found.trace.encode())
    if found.memory_lines is not None:
        timeline, limits = found.memory_lines
        workers = range(found.plan.axes.pipeline)
        data |= {"memory": lines(timeline, workers, 0), "limits": limits}
        held = filled(timeline, workers, _MEMORY_PARTS) / np.array([[max(1, limit)] for limit in limits])
        data["filled"] = {**heat(held), "span": timeline.makespan_ns}
    if found.busy_shares is not None and found.busy_shares[0]:
        ranks, steps, shares = found.busy_shares
        shown = slice(-_MOST_STEPS, None)
        data["late"] = {**heat(shares[:, shown]), "ranks": ranks, "steps": steps[shown]}
    if found.beside is not None:
        data["beside"] = {**_charted(found.beside), "pipes": len(found.beside.plan.schedule.place)}
    return data


_MEMORY_PARTS = 240  # of a step, in which memory is told
_MOST_STEPS = 500  # whose ranks are drawn, the last ones


def _charted(found: Contents) -> dict[str, object]:
    tracks = [{"name": "predicted", **packed(found.predicted)}]
    if found.measured is not None:
        tracks.insert(0, {"name": "measured", **packed(found.measured)})
    return {"tracks": tracks, "workers": [str(worker) for worker in range(found.plan.axes.pipeline)]}


def _json(data: object) -> str:
    """Returns data as JSON that is safe inside a script element: it cannot end the element or begin a comment."""
    shown = json.dumps(data, separators=(",", ":"))
    return shown.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files("planner.report").joinpath("web", name).read_text(encoding="utf-8")
