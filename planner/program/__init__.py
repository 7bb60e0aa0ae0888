"""Sends and receives in an order that cannot deadlock."""

from planner.program.check import violations
from planner.program.lower import Layout, lower
from planner.program.program import Instruction, Program

__all__ = [
    "Instruction",
    "Layout",
    "Program",
    "lower",
    "violations",
]
