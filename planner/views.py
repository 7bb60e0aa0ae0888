"""Names the view of every class that shows itself. `import shardwright` installs them all.

Views are named, not imported: a view is loaded when a value is first shown, so that planning from files starts at once.
"""

from __future__ import annotations

from planner.shown import Face, register

VIEWS: dict[Face, dict[str, str]] = {
    "text": {
        "planner.plan.plan:Plan": "planner.show.plain:of_plan",
        "planner.explore.explanation:Explanation": "planner.show.explanation:explanation_text",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:of_frontier",
        "planner.explore.scaling:Sweep": "planner.show.sweeps:of_sweep",
        "planner.cluster.cluster:Cluster": "planner.show.plain:of_cluster",
        "planner.model.graph:ModelGraph": "planner.show.values:graph_text",
        "planner.capture.capture:Captured": "planner.show.values:captured_text",
        "planner.profile.profile:Profile": "planner.show.plain:of_profile",
        "planner.timeline.timeline:Timeline": "planner.show.values:timeline_text",
        "planner.timeline.comparison:Comparison": "planner.show.values:comparison_text",
        "planner.simulate.simulate:RunRecord": "planner.show.values:run_text",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_text",
        "runtime.launch.handle:StepRows": "planner.show.values:lines_text",
        "runtime.launch.status:Runs": "planner.show.values:runs_text",
    },
    "html": {
        "planner.plan.plan:Plan": "planner.show.values:plan_html",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:frontier_html",
        "planner.cluster.cluster:Cluster": "planner.show.values:cluster_html",
        "planner.model.graph:ModelGraph": "planner.show.values:graph_html",
        "planner.capture.capture:Captured": "planner.show.values:captured_html",
        "planner.profile.profile:Profile": "planner.show.values:profile_html",
        "planner.timeline.timeline:Timeline": "planner.show.values:timeline_html",
        "planner.timeline.comparison:Comparison": "planner.show.values:comparison_html",
        "planner.simulate.simulate:RunRecord": "planner.show.values:run_html",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_html",
        "runtime.launch.handle:Handle": "planner.show.values:preformatted",
        "runtime.launch.handle:StepRows": "planner.show.values:lines_html",
        "runtime.launch.status:Runs": "planner.show.values:lines_html",
        "runtime.rehearse.report:Rehearsal": "planner.show.values:preformatted",
    },
    "figure": {
        "planner.explore.frontier:Frontier": "planner.show.figures:of_front",
        "planner.model.graph:ModelGraph": "planner.show.figures:of_graph",
        "planner.profile.profile:Profile": "planner.show.figures:of_profile",
        "planner.timeline.timeline:Timeline": "planner.show.figures:of_timeline",
        "planner.simulate.simulate:RunRecord": "planner.show.figures:of_run",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_figure",
        "runtime.launch.handle:Handle": "planner.show.figures:of_handle",
    },
    "data": {
        "planner.plan.plan:Plan": "planner.show.plain:plan_data",
        "planner.explore.explanation:Explanation": "planner.show.explanation:explanation_dict",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:frontier_data",
        "planner.explore.scaling:Sweep": "planner.show.sweeps:sweep_data",
    },
}


def install() -> None:
    """Registers every view by name and imports nothing for it.

    Example: `import shardwright` calls install() once.
    """
    for face, views in VIEWS.items():
        for kind, view in views.items():
            register(face, kind, view)
