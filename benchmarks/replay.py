"""A step replayed from the durations that it was measured to have: what is left is the runtime's own time.

The same order of actions and messages, each action as long as it took, messages as long as given: the longest path
through that. Measured over replayed is what waiting, messages and the interpreter cost beyond the plan.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.plan import Plan
from planner.program import Program
from planner.schedule import Action, Kind, Message
from planner.timeline import Timeline, decode


def replayed_ns(
    program: Program, duration_ns: Callable[[int, Action], int], hop_ns: Callable[[Message], int]
) -> int:
    """Makespan of a step that starts everywhere at 0; `duration_ns` gets the worker and the action."""
    sent: dict[Message, int] = {}
    clock, at = [0] * len(program.ranks), [0] * len(program.ranks)
    moved = True
    while moved:
        moved = False
        for worker, instructions in enumerate(program.ranks):
            while at[worker] < len(instructions):
                op, action, message = instructions[at[worker]]
                if op == "wait":
                    assert message is not None
                    if message not in sent:
                        break
                    clock[worker] = max(clock[worker], sent[message] + hop_ns(message))
                elif op == "send":
                    assert message is not None
                    sent[message] = clock[worker]
                elif action is not None:
                    clock[worker] += duration_ns(worker, action)
                at[worker] += 1
                moved = True
    assert all(at[w] == len(instructions) for w, instructions in enumerate(program.ranks)), "a deadlock"
    return max(clock)


def replay(program: Program, step: Timeline, rank_of: Callable[[int], int], plan: Plan) -> int:
    """Of one measured step; an update takes its planned time, since its measured one holds the wait for the sum."""
    took: dict[tuple[int, str], int] = {}
    for rank, code, start, end in zip(
        step.rank.tolist(), step.code.tolist(), step.start_ns.tolist(), step.end_ns.tolist(), strict=True
    ):
        took[rank, str(decode(code))] = end - start

    def duration_ns(worker: int, action: Action) -> int:
        if action.kind is Kind.STEP:
            return plan.times[action.stage].step_ns
        return took[rank_of(worker), str(action)]

    return replayed_ns(program, duration_ns, lambda message: 0)
