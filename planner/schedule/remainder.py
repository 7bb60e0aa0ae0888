"""What to do where micro-batches do not fill whole units: the closed form leaves a gap, a listed order may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.schedule.action import Action
from planner.schedule.assemble import Place
from planner.schedule.costs import Limits, nominal
from planner.schedule.list_job import Job, Policy
from planner.schedule.list_scheduler import best_listed
from planner.schedule.replay import span_of

POLICIES = (Policy(tie="deep"), Policy(tie="micro"), Policy(tie="first"), Policy(tie="deep", order="FBW"))


def shorter(place: Place, pipe_of: Sequence[int], orders: list[list[Action]], cap: int) -> list[list[Action]]:
    """The given orders, or listed ones with at most `cap` in flight on a worker where those are shorter at B = 2F."""
    costs = nominal(len(place[0]))
    limits = Limits(memory=(cap,) * len(orders))
    job = Job(place=place, pipe_of=pipe_of, costs=costs, split=False, limits=limits)
    listing = best_listed(replace(job, policy=policy) for policy in POLICIES)
    return listing.orders if listing.span < span_of(place, orders, costs) else orders
