"""States and solves the mixed-integer program over the configurations that are left, in mathematics and in code.

Sets
    c            configurations that are left, each with a fixed order; p = 0 .. D_c - 1 its stages
    W_cp         window of boundary p: the layers that stage p may begin with; W_c0 = {0}, W_cD = {layers}
    A_cp         arcs (i, j), i in W_cp, j in W_c,p+1: stage p may hold the layers i .. j - 1, because they fit
    R_c          rows: critical paths and cycles of the order, as counts a (kind, stage) and message
    M_c          moments of workers that host several stages
Parameters
    t_crp(i, j)  what stage p = [i, j) adds to row r, messages into it included [units of time]
    m_cmp(i, j)  what it adds at moment m, as a share of the worker's memory
    b_c          lower bound of the configuration
Variables
    s_c in {0, 1}        the configuration is chosen
    y_cpj in {0, 1}      boundary p lies at or before layer j (cumulative)
    x_cpij >= 0          stage p is [i, j); a flow, and whole wherever y is
    T                    time of a step [units of time]
Minimise T subject to
    one_shape            sum_c s_c = 1
    cumulative           y_cpj <= y_cp,j+1 and, at the last j of W_cp, y_cpj = s_c
    nonempty             y_c,p+1,j+1 <= y_cpj: every stage holds a layer
    flow                 sum_j x_cpij = y_cpi - y_cp,i-1 and sum_i x_cpij = y_c,p+1,j - y_c,p+1,j-1
    times                T >= sum_p sum_(i,j) t_crp(i, j) x_cpij                              for r in R_c
    memory               sum_p sum_(i,j) m_cmp(i, j) x_cpij <= s_c                            for m in M_c
    known                T >= T(k) (1 - sum_p (1 - x_cp k_p k_p+1))                           for cuts k simulated
    bounded              T >= sum_c b_c s_c

Each family of constraints is added by the function of its name. There is no big-M: a configuration that is not chosen
has s = y = x = 0, so its rows are void. `times` holds for every cut of the windows, because a longest path is at least
each path. `solve` solves the program, simulates its cut and adds the critical path of the simulation. It repeats this
until the objective is the simulated time. Messages that skip a stage depend on more than one boundary, so t prices them
from below; `known` makes the cut exact once it was met.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal

import numpy as np
import pulp

from planner.arrays import FloatArray, IntArray
from planner.proof import NOTHING, UNFIT_NS, Box, Weights, judge, memory_weights, stack, weigh

TOLERANCE = 1e-6  # relative tolerance of the solvers
_UNITS = 1000.0  # units of time in the limit
_ROUNDS = 30
Solver = Literal["highs", "cbc"]
Status = Literal["optimal", "stopped", "infeasible"]
Before = dict[int, pulp.LpVariable | pulp.LpAffineExpression]  # of a boundary, by layer


@dataclass(kw_only=True)
class OpenConfiguration:
    """A configuration that is left: the box of its cuts in question, the rows known, and its lower bound."""

    box: Box
    rows: Weights
    bound_ns: int = 0
    known: list[tuple[IntArray, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ProgramOutcome:
    """The best cut of the program, its simulated time, the lower bound, and the size of the program."""

    status: Status
    part: int  # the number of the configuration; -1 without an answer
    cut: IntArray
    ns: int  # simulated, of `cut`
    bound_ns: float
    variables: int
    rows: int
    rounds: int


@dataclass(kw_only=True)
class _Columns:
    """The variables of one configuration."""

    shape: pulp.LpVariable
    before: list[Before]  # [boundary][layer]
    arcs: list[dict[tuple[int, int], pulp.LpVariable]]  # [stage][begin, end]


def program(parts: Sequence[OpenConfiguration], limit_ns: int) -> tuple[pulp.LpProblem, list[_Columns]]:
    """Returns the program over these configurations, and its variables; its unit of time is `limit_ns` / 1000."""
    unit = limit_ns / _UNITS
    model = pulp.LpProblem("plan", pulp.LpMinimize)
    time = pulp.LpVariable("T", 0.0, _UNITS)
    model += time
    columns = [_columns(c, part.box) for c, part in enumerate(parts)]
    one_shape(model, columns)
    bounded(model, time, parts, columns, unit)
    for part, own in zip(parts, columns, strict=True):
        cumulative(model, own)
        nonempty(model, own)
        flow(model, part.box, own)
        times(model, time, part, own, unit)
        memory(model, part, own)
        known(model, time, part, own, unit)
    return model, columns


def _columns(c: int, box: Box) -> _Columns:
    shape = pulp.LpVariable(f"s_{c}", cat="Binary")
    before: list[Before] = []
    arcs = []
    for p in range(len(box.low)):
        window = box.window(p).tolist()
        before.append(
            {j: pulp.LpVariable(f"y_{c}_{p}_{j}", cat="Binary") for j in window[:-1]} | {window[-1]: shape}
        )
    for p, alive in enumerate(box.alive):
        pairs = (np.argwhere(alive) + box.low[[p, p + 1]]).tolist()
        arcs.append({(i, j): pulp.LpVariable(f"x_{c}_{p}_{i}_{j}", 0.0, 1.0) for i, j in pairs})
    return _Columns(shape=shape, before=before, arcs=arcs)


def one_shape(model: pulp.LpProblem, columns: Sequence[_Columns]) -> None:
    model += pulp.lpSum(own.shape for own in columns) == 1


def bounded(
    model: pulp.LpProblem,
    time: pulp.LpVariable,
    parts: Sequence[OpenConfiguration],
    columns: Sequence[_Columns],
    unit: float,
) -> None:
    terms = zip(parts, columns, strict=True)
    model += time >= pulp.lpSum(part.bound_ns / unit * own.shape for part, own in terms)


def cumulative(model: pulp.LpProblem, own: _Columns) -> None:
    for before in own.before:
        layers = list(before)
        for j, following in pairwise(layers):
            model += before[j] <= before[following]


def nonempty(model: pulp.LpProblem, own: _Columns) -> None:
    for here, onward in pairwise(own.before):
        for j in here:
            if j + 1 in onward and j != max(here):
                model += onward[j + 1] <= here[j]


def flow(model: pulp.LpProblem, box: Box, own: _Columns) -> None:
    for p, arcs in enumerate(own.arcs):
        leaving: dict[int, list[pulp.LpVariable]] = {}
        entering: dict[int, list[pulp.LpVariable]] = {}
        for (i, j), x in arcs.items():
            leaving.setdefault(i, []).append(x)
            entering.setdefault(j, []).append(x)
        for i in box.window(p).tolist():
            model += pulp.lpSum(leaving.get(i, [])) == _exactly(own.before[p], i)
        for j in box.window(p + 1).tolist():
            model += pulp.lpSum(entering.get(j, [])) == _exactly(own.before[p + 1], j)


def _exactly(before: Before, j: int) -> pulp.LpVariable | pulp.LpAffineExpression:
    return before[j] - before[j - 1] if j - 1 in before else before[j]


def times(
    model: pulp.LpProblem, time: pulp.LpVariable, part: OpenConfiguration, own: _Columns, unit: float
) -> None:
    far = part.box.hops.far(part.rows.hops) + part.rows.constant
    costs = [part.box.arc(part.rows, p) for p in range(len(own.arcs))]
    for r in range(len(part.rows)):
        if far[r] <= NOTHING / 2 or any((cost[r] <= NOTHING / 2).any() for cost in costs):
            continue  # a cut of the box may lack a message that the row counts
        terms = [_sum(part.box, own, p, cost[r] / unit) for p, cost in enumerate(costs)]
        model += time >= pulp.lpSum(terms) + far[r] / unit * own.shape


def memory(model: pulp.LpProblem, part: OpenConfiguration, own: _Columns) -> None:
    rows = memory_weights(part.box.problem)
    costs = [part.box.arc(rows, p) for p in range(len(own.arcs))]
    for m in range(len(rows)):
        room = -float(rows.constant[m])
        terms = [_sum(part.box, own, p, cost[m] / room) for p, cost in enumerate(costs)]
        model += pulp.lpSum(terms) <= own.shape


def known(
    model: pulp.LpProblem, time: pulp.LpVariable, part: OpenConfiguration, own: _Columns, unit: float
) -> None:
    for cut, ns in part.known:
        arcs = [own.arcs[p].get((int(cut[p]), int(cut[p + 1]))) for p in range(len(own.arcs))]
        if all(x is not None for x in arcs):
            value = min(ns / unit, 2 * _UNITS)
            model += time >= value * (pulp.lpSum(arcs) - (len(arcs) - 1) * own.shape)


def _sum(box: Box, own: _Columns, p: int, cost: FloatArray) -> pulp.LpAffineExpression:
    low, high = box.low[p], box.low[p + 1]
    return pulp.LpAffineExpression({x: float(cost[i - low, j - high]) for (i, j), x in own.arcs[p].items()})


def solve(
    parts: Sequence[OpenConfiguration],
    limit_ns: int,
    *,
    nodes: int,
    work_ns: float = inf,
    solver: Solver | None = None,
) -> ProgramOutcome:
    """Finds the best cut of these configurations that takes at most `limit_ns`, by program and simulator in turn.

    Args: `nodes` limits each run of the solver, `work_ns` all of them; `parts` gain rows and known cuts as it proceeds.
    Returns: the outcome, in simulated nanoseconds; `part` is -1 where no cut was found.
    """
    chosen = solver or ("highs" if pulp.HiGHS(msg=False).available() else "cbc")
    best: tuple[int, int, IntArray] | None = None
    rounds, least, meter = 0, 0.0, parts[0].box.problem.meter
    stop_ns = meter.spent_ns + work_ns
    while rounds < _ROUNDS and (rounds == 0 or meter.spent_ns < stop_ns):
        rounds += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 3 announces what PuLP 4 will rename
            model, columns = program(parts, limit_ns)
            status, bound = _run(model, chosen, nodes)
            variables, rows = len(model.variables()), len(model.constraints)
            meter.programmed(_iterations(model), rows, sum(map(len, model.constraints.values())))
        least = max(least, min(bound, _UNITS) * limit_ns / _UNITS)
        if status == "infeasible" or (found := _cut(columns)) is None:
            break
        c, cut = found
        part = parts[c]
        ns = int(judge(part.box.problem, cut[None, :])[0])
        if best is None or ns < best[0]:
            best = (ns, c, cut)
        if status == "stopped" or ns <= least + max(1.0, TOLERANCE * limit_ns):
            break
        if ns < UNFIT_NS:
            row, _ = part.box.problem.critical(cut)
            part.rows = stack([part.rows, weigh(row)], part.box.problem.stages)
        part.known.append((cut, ns))
    else:
        status = "stopped"
    ns, c, cut = best or (UNFIT_NS, -1, np.zeros(0, np.int64))
    return ProgramOutcome(
        status=status,
        part=c,
        cut=cut,
        ns=ns,
        bound_ns=least,
        variables=variables,
        rows=rows,
        rounds=rounds,
    )


def _run(model: pulp.LpProblem, solver: Solver, nodes: int) -> tuple[Status, float]:
    """Returns status and lower bound. PuLP calls a stopped run optimal; its solution status does not."""
    if solver == "highs":
        return _run_highs(model, nodes)
    model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, maxNodes=nodes))
    if model.sol_status == pulp.LpSolutionOptimal:
        return "optimal", float(pulp.value(model.objective))
    infeasible = model.status == pulp.LpStatusInfeasible
    return ("infeasible", _UNITS) if infeasible else ("stopped", 0.0)


def _run_highs(model: pulp.LpProblem, nodes: int) -> tuple[Status, float]:
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, mip_max_nodes=nodes, mip_abs_gap=0.0)
    try:
        model.solve(solver)
    except KeyError:  # PuLP knows no word for a run that ended at its limit of nodes
        return "stopped", float(model.solverModel.getInfo().mip_dual_bound)
    if model.status == pulp.LpStatusInfeasible:
        return "infeasible", _UNITS
    bound = float(model.solverModel.getInfo().mip_dual_bound)
    if model.sol_status == pulp.LpSolutionOptimal:
        return "optimal", min(bound, float(pulp.value(model.objective)))
    return "stopped", bound


def _iterations(model: pulp.LpProblem) -> int:
    """Returns the iterations of the run; as many as there are rows where the solver does not tell."""
    solver = getattr(model, "solverModel", None)
    return len(model.constraints) if solver is None else int(solver.getInfo().simplex_iteration_count)


def _cut(columns: Sequence[_Columns]) -> tuple[int, IntArray] | None:
    for c, own in enumerate(columns):
        chosen = [[arc for arc, x in stage.items() if (x.varValue or 0.0) > 0.5] for stage in own.arcs]
        if (own.shape.varValue or 0.0) > 0.5 and all(chosen):
            return c, np.array([0, *(arcs[0][1] for arcs in chosen)], np.int64)
    return None
