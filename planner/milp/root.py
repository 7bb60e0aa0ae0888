"""The first look at a shape: multipliers over its rows, priced by running minima over the boundaries.

Rows and cuts grow in turn. Where no mixture of rows refutes the shape, the best one still narrows the windows in which
the boundaries of a better cut must lie; the tree goes on from there.
"""

from __future__ import annotations

from planner.cost import IntArray
from planner.milp.box import ROUNDING, Weights, stack
from planner.milp.game import Game
from planner.milp.lines import Lines
from planner.milp.record import Record

_PATIENCE = 10  # mixtures without a better bound, before the tree takes over
_GAIN = 2e-4  # of the limit: what counts as better
_TRIAL, _HOPE = (
    40,
    0.6,
)  # mixtures tried in any case; a bound below so much of the limit is then left as it is
_NARROWINGS = 3
Windows = tuple[IntArray, IntArray]


def surrounded(record: Record, lines: Lines, spans: Windows, rounds: int) -> tuple[float, Windows | None]:
    """A bound of all cuts of the windows, and the windows of those below the limit; None if there are none."""
    bound, mixtures = _squeezed(record, lines, spans, rounds)
    if bound > record.most:
        return bound, None
    active = record.pool.weights.part(record.pool.active())
    rows = stack([active, *mixtures], record.problem.stages)
    for _ in range(_NARROWINGS):
        narrow = lines.narrowed(rows, record.most, *spans)
        if narrow is None:
            return record.most + ROUNDING, None
        if (narrow[0] == spans[0]).all() and (narrow[1] == spans[1]).all():
            break
        spans = narrow
    return bound, spans


def _squeezed(record: Record, lines: Lines, spans: Windows, rounds: int) -> tuple[float, list[Weights]]:
    """The bound of the best mixture of rows, and the mixtures that were best in their time."""
    pool, bound, mixtures = record.pool, 0.0, list[Weights]()
    chosen = pool.inside(*spans)
    since, marked = 0, 0.0
    game: Game | None = None
    for turn in range(rounds):
        if game is None or not game.grow():
            game = Game(pool, chosen, float(record.limit), ample=True)
        solved = game.solve()
        if solved is None:
            break
        most, mixed = solved
        value, cut = lines.least(mixed, *spans)
        if value > bound:
            bound, mixtures = value, [mixed, *mixtures[:4]]
        since = 0 if bound > marked + _GAIN * record.limit else since + 1
        marked = bound if since == 0 else marked
        hopeless = turn >= _TRIAL and bound < _HOPE * record.limit
        if bound > record.most or (turn >= _TRIAL and since > _PATIENCE) or hopeless or not len(cut):
            break
        between = record.learn_between(game, most)
        if pool.find(cut) not in chosen:
            chosen.append(record.learn(cut))
            game.add(chosen[-1])
        elif not between:
            break
    return bound, mixtures
