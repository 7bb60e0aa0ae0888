"""Sends and receives in an order that cannot deadlock."""

from planner.program.check import check_program
from planner.program.lower import Layout, lower
from planner.program.program import Instruction, Program

__all__ = [
    "Instruction",
    "Layout",
    "Program",
    "check_program",
    "lower",
]
