"""The programs of a plan: what every rank derives for itself, the same everywhere."""

from __future__ import annotations

from dataclasses import replace

import torch

from planner.plan import Plan
from planner.schedule.action import Kind
from planner.schedule.lower import Layout, lower
from planner.schedule.program import Program
from planner.simulate import schedule_of
from runtime.groups import World

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def program_of(plan: Plan, world: World) -> Program:
    return lower(schedule_of(plan), plan.hops, plan.times, layout=_layout(world))


def forward_program(plan: Plan, world: World) -> Program:
    """The forwards alone, in the plan's order."""
    schedule = schedule_of(plan)
    orders = tuple(tuple(a for a in order if a.kind is Kind.F) for order in schedule.orders)
    hops = [hop for hop in plan.hops if hop.direction == "act"]
    return lower(replace(schedule, orders=orders), hops, plan.times, layout=_layout(world))


def _layout(world: World) -> Layout:
    """NCCL executes what a rank issues in order, whoever the peer is; gloo's channels are independent."""
    return "global" if world.device.type == "cuda" else "channel"
