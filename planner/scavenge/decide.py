"""The decision: which job trains on how many of the nodes that are idle now.

    sets        j jobs; k sizes of job j, and 0; p pools of nodes (racks, kinds), one where nothing else is asked
    given       O_j(k) worth of a second on k nodes, C_j nodes that the job holds now, U_j and D_j seconds without
                training after it grew or shrank (less what is left of a pause that it is in, 0 at least), T seconds to
                look ahead, n_p idle nodes, r limits of an administrator
    variables   x_jkp = 1 where job j trains on k nodes of pool p
    objective   maximise  sum_jkp x_jkp (T O_j(k) - O_j(C_j) (U_j [k > C_j] + D_j [k < C_j]))       `gain`
    subject to  sum_kp x_jkp = 1          every job has one size, perhaps 0                         row 1
                sum_jk k x_jkp <= n_p     never more than are idle                                  row 2
                sum_(j in r) k x_jkp <= m_r                                                         row 3

With one pool and no limits this is a knapsack with one choice of each job, and a table over nodes solves it exactly.
Nodes of a pool are alike, so a program with a variable for every node has the same answer and takes longer.
Worths become whole numbers first: sums are then exact, and a tie never changes a job's size.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from planner.arrays import FloatArray, IntArray
from planner.errors import BadInput
from planner.scavenge.curves import ElasticJob

LOOK_AHEAD_S = 120.0
_ONE = 2**40  # of the largest gain, once it is a whole number: 2**12 jobs add up exactly in 53 bits


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A job and what it holds when nodes come or go."""

    job: ElasticJob
    nodes: int = 0  # that are still there
    worth: float = 0.0  # of a second as it was before; 0 for a job that does not train
    broken: bool = False  # nodes were taken from it: it has to start again, at any size
    rest_s: float = 0.0  # of a pause that it is in: a change now costs only what its own pause is longer
    pool: str = ""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A row of an administrator: these jobs together never have more nodes than this."""

    jobs: frozenset[str]
    most: int


def gain(holding: Holding, nodes: int, look_ahead_s: float, pool: str = "") -> float:
    """Returns what a size is worth until the time that is looked ahead to, less the work that the change costs.

    Args: `nodes` is a size of the job's curve, or 0; `pool` is where those nodes are.
    """
    worth = np.array([holding.job.worth(nodes, pool)])
    return float(_gains(holding, np.array([nodes]), worth, look_ahead_s, moved=pool != holding.pool)[0])


def _gains(
    holding: Holding, sizes: IntArray, worths: FloatArray, look_ahead_s: float, *, moved: bool = False
) -> FloatArray:
    """Returns the gain of every size; a job that was broken, or moves to another pool, starts again at any size."""
    job, held = holding.job, holding.nodes
    again = holding.broken or (moved and held > 0)
    pauses = np.where(sizes > held, job.up_s, np.where((sizes < held) | again, job.down_s, 0.0))
    return np.asarray(look_ahead_s * worths - holding.worth * np.maximum(pauses - holding.rest_s, 0.0))


def decide(
    holdings: Sequence[Holding],
    idle: int | Mapping[str, int],
    *,
    look_ahead_s: float = LOOK_AHEAD_S,
    limits: Sequence[Limit] = (),
) -> list[tuple[int, str]]:
    """Returns the number of nodes of each job, and their pool.

    Args: `idle` counts the nodes that jobs hold now too; a mapping has them by rack or kind, and a job never
      trains across two. `limits` are an administrator's.
    """
    if isinstance(idle, int) and not limits:
        return [(nodes, "") for nodes in knapsack(holdings, idle, look_ahead_s)]
    pools = {"": idle} if isinstance(idle, int) else idle
    return decide_by_milp(holdings, pools, look_ahead_s, limits)


def knapsack(holdings: Sequence[Holding], idle: int, look_ahead_s: float = LOOK_AHEAD_S) -> list[int]:
    """Returns the number of nodes of each job, of the greatest total gain.

    Args: `idle` is the number of nodes that there are, held or not.
    """
    idle = min(idle, sum(max(holding.job.curve.rates) for holding in holdings))  # more could not be used
    options = [_options(holding, idle, look_ahead_s) for holding in holdings]
    unit = _unit([float(np.abs(gains).max()) for _, gains in options])
    rounded = [(sizes, np.rint(gains * unit)) for sizes, gains in options]
    best = [np.zeros(idle + 1)]
    for sizes, gains in rounded:  # best[j][n] is the greatest gain of the first j jobs on at most n nodes
        most = int(sizes.max())
        room = np.concatenate([np.full(most, -np.inf), best[-1]])
        best.append((sliding_window_view(room, idle + 1)[most - sizes] + gains[:, None]).max(axis=0))
    left, chosen = idle, list[int]()
    for before, (sizes, gains) in zip(best[-2::-1], reversed(rounded), strict=True):
        fits = np.where(sizes <= left, before[np.maximum(left - sizes, 0)] + gains, -np.inf)
        chosen.append(int(sizes[np.argmax(fits)]))  # the first of the best, which changes nothing if it can
        left -= chosen[-1]
    return chosen[::-1]


def decide_by_milp(
    holdings: Sequence[Holding],
    idle: Mapping[str, int],
    look_ahead_s: float = LOOK_AHEAD_S,
    limits: Sequence[Limit] = (),
) -> list[tuple[int, str]]:
    """Returns what `decide` does, from the program as it is stated above.

    Raises: BadInput where a limit names no job.
    """
    known = {holding.job.name for holding in holdings}
    for limit in limits:
        if unknown := sorted(limit.jobs - known):
            raise BadInput(f"limits {unknown[0]}, which is no job", where="limits", allowed=", ".join(known))
    rows = [
        [
            (nodes, pool, gain(holding, nodes, look_ahead_s, pool))
            for pool, most in (("", 0), *idle.items())
            for nodes in ([0] if not most else _sizes(holding, pool, most))
        ]
        for holding in holdings
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 3 announces what PuLP 4 will rename
        chosen = _solved(holdings, rows, idle, limits)
    return [row[i][:2] for row, i in zip(rows, chosen, strict=True)]


def _solved(
    holdings: Sequence[Holding],
    rows: Sequence[Sequence[tuple[int, str, float]]],
    idle: Mapping[str, int],
    limits: Sequence[Limit],
) -> list[int]:
    """Returns which of its options each job has, each being nodes, pool and gain."""
    import pulp

    unit = 2.0**-20 * _unit([value for row in rows for _, _, value in row])
    model = pulp.LpProblem("scavenge", pulp.LpMaximize)
    chosen = [
        [pulp.LpVariable(f"x_{j}_{i}", cat="Binary") for i in range(len(row))] for j, row in enumerate(rows)
    ]
    cells = [
        (j, *option, x)
        for j, (row, own) in enumerate(zip(rows, chosen, strict=True))
        for option, x in zip(row, own, strict=True)
    ]
    model += pulp.lpSum(value * unit * x for _, _, _, value, x in cells)
    for own in chosen:
        model += pulp.lpSum(own) == 1
    for pool, most in idle.items():
        model += pulp.lpSum(nodes * x for _, nodes, at, _, x in cells if at == pool) <= most
    for limit in limits:
        limited = [nodes * x for j, nodes, _, _, x in cells if holdings[j].job.name in limit.jobs]
        model += pulp.lpSum(limited) <= limit.most
    exact = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, mip_abs_gap=0.0)
    model.solve(
        exact if exact.available() else pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, gapAbs=0.0)
    )
    return [max(range(len(own)), key=lambda i, own=own: own[i].value()) for own in chosen]  # type: ignore[misc]


def _options(holding: Holding, idle: int, look_ahead_s: float) -> tuple[IntArray, FloatArray]:
    """Returns every size with its gain; the one that changes nothing stands first, so that it wins ties."""
    job, held = holding.job, holding.nodes
    sizes, rates = job.curve.arrays
    known = sizes <= idle
    sizes, rates = sizes[known], rates[known]
    first = np.flatnonzero(sizes == held)
    if len(first):
        order = np.concatenate([first, np.delete(np.arange(len(sizes)), first)])
        sizes, rates = sizes[order], rates[order]
    return sizes, _gains(holding, sizes, job.weight * rates, look_ahead_s)


def _sizes(holding: Holding, pool: str, most: int) -> list[int]:
    job = holding.job
    curve = job.curve if job.of_pool is None else job.of_pool.get(pool, job.curve)
    return [nodes for nodes in curve.rates if nodes <= most]


def _unit(gains: Sequence[float]) -> float:
    largest = max(map(abs, gains), default=0.0)
    return _ONE / largest if largest else 1.0
