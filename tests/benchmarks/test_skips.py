"""Skips that meet on one device are not sent; relayed, each passes every device between."""

from __future__ import annotations

from benchmarks.skips import compared, skip_bytes
from planner.milp import Question, solve
from planner.profile import Profile
from tests.planner.milp.instances import Block, cluster, profile


def u_shaped() -> Profile:
    """Four layers down, four up, each of which reads the one opposite; the outer ones are large."""
    size = [8000, 4000, 2000, 1000, 1000, 2000, 4000, 8000]
    blocks = []
    for k in range(8):
        reads = (k - 1,) if k < 5 else (k - 1, 7 - k)
        blocks.append(
            Block(forward=1000, input_grad=1000, weight_grad=1000, out=size[k], own=0, weight=40, reads=reads)
        )
    return profile(blocks)


def test_bytes_of_a_fold_are_those_of_no_skip_and_of_a_line_those_of_every_hop() -> None:
    costs, machines = u_shaped(), cluster(2)
    cuts = {"cuts": "l2,l4,l6", "data": 1, "pipeline": 2}
    folded = solve(Question(profile=costs, cluster=machines, batch=4, schedules=["zb-v"], fix=cuts))
    # v0 and v1 are read in the last stage, v2 in the third: of 4 stages on devices 0 1 1 0; v1 is in the second anyway
    assert skip_bytes(folded, costs.graph) == (0, 2 * 8000 + 4000)
    line = solve(
        Question(profile=costs, cluster=cluster(4), batch=4, schedules=["1f1b"], fix={**cuts, "pipeline": 4})
    )
    assert skip_bytes(line, costs.graph) == (8000 + 4000 + 2000, 3 * 8000 + 2 * 4000 + 2000)


def test_v_placements_of_a_u_shaped_model_send_less_than_half() -> None:
    plain, *folded = compared(u_shaped(), 2)
    assert plain[1] == "1f1b"
    assert min(float(row[5] or 0.0) for row in folded) > 50.0
