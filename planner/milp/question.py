"""The question that a plan answers, as one value, and the solver's entry: the fastest plan with its certificate, or why
there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from planner.cluster import Cluster, total_devices, with_memory, with_network, with_nodes
from planner.configurations import (
    SEARCHED,
    Configuration,
    Pins,
    check_parts,
    check_space,
    pins,
    told,
    with_stages,
)
from planner.errors import BadInput, Infeasible
from planner.limits import Effort
from planner.milp import infeasible
from planner.milp.instance import Instance, changed
from planner.milp.layer_orders import orders
from planner.milp.search.candidates import Candidates, ranked
from planner.milp.search.pick import thriftier
from planner.milp.search.state import SearchState
from planner.milp.uneven import uneven
from planner.milp.write_plan import plan_of
from planner.model import own_states
from planner.plan import Plan, held_in_half
from planner.profile import Profile
from planner.proof import UNFIT_NS, judge
from planner.schedule import FAMILIES, ROUNDS_BY_PART, rounds_by_part


@dataclass(frozen=True, kw_only=True)
class Question:
    """A planning question: what is trained, on which machines, with what fixed, and how hard to search.

    `fix` maps the keys of `--fix` to values; `schedules` names the families to choose from, None allows all.
    Without a precision or an execution, fp32 and eager are taken where they were profiled.
    """

    profile: Profile
    cluster: Cluster
    batch: int
    fix: Mapping[str, object] = field(default_factory=dict)
    schedules: Sequence[str] | None = None
    precision: str | None = None
    execution: str | None = None
    effort: Effort = field(default_factory=Effort)

    def replace(
        self,
        *,
        cluster: Cluster | None = None,
        batch: int | None = None,
        memory_gib: float | None = None,
        nodes: int | None = None,
        network: float | None = None,
        schedule: str | Sequence[str] | None = None,
        fix: Mapping[str, object] | None = None,
    ) -> Question:
        """Returns the question with something changed; what is None stays as it is.

        Args: `memory_gib` a device, `nodes` at most, `network` multiplies the bandwidth of links, `schedule` names
        one family or several, and `fix` is merged into what is fixed, where a value of None frees its key.
        Raises: BadInput where the cluster cannot be changed so.
        """
        machines = self.cluster if cluster is None else cluster
        machines = with_memory(machines, memory_gib) if memory_gib is not None else machines
        machines = with_nodes(machines, nodes) if nodes is not None else machines
        machines = with_network(machines, network) if network is not None else machines
        fixed = {key: value for key, value in {**self.fix, **(fix or {})}.items() if value is not None}
        families = self.schedules
        if schedule is not None:
            families = (schedule,) if isinstance(schedule, str) else tuple(schedule)
            fixed.pop("schedule", None)
        return replace(
            self,
            cluster=machines,
            batch=self.batch if batch is None else batch,
            schedules=families,
            fix=fixed,
        )

    def instance(self) -> Instance:
        """Returns the instance that the solver searches.

        Raises: BadInput where the batch, the pins, the precision or the execution do not match the profile.
        """
        if self.batch < 1:
            raise BadInput(f"batch is {self.batch}", allowed="1 or more")
        fixed = check_parts(check_space(pins(self.fix, self.schedules), self.profile.graph))
        profile, pinned = orders.as_pinned(self.profile, with_stages(fixed, self.profile.graph))
        precision = _choice(profile, "precision", self.precision, "fp32")
        execution = _choice(profile, "execution", self.execution, "eager")
        if pinned.weights == "bf16":
            alone = bool(pinned.held), pinned.group is not None
            profile = held_in_half(profile, precision, execution, *alone)
        instance = Instance(
            profile=profile,
            cluster=self.cluster,
            batch=self.batch,
            precision=precision,
            execution=execution,
            pins=_alike_in_parts(pinned) if rounds_by_part(precision, execution) else pinned,
        )
        if instance.pins.ema and profile.kept.counts:
            said = "ema averages whole parameters, and these are pruned"
            raise BadInput(said, where="ema", allowed="no ema, or a model that is not pruned")
        if instance.pins.held and profile.kept.counts:
            said = f"pruned weights do not go with {instance.pins.held} shared by element"
            raise BadInput(said, where="fix shard", allowed="state, or none")
        if instance.pins.held == "parameters" and (buffers := own_states(profile.graph)):
            said = f"each replica updates '{next(iter(buffers))}' from whole parameters"
            raise BadInput(said, where="fix shard", allowed="gradients, state or none")
        if instance.pins.sums and not self.cluster.of_hosts:
            raise BadInput(
                f"sums is {instance.pins.sums}", where="fix", allowed="nccl sums between GPUs: leave it out"
            )
        if instance.pins.sums == "nccl":
            allowed = "ring, direct, rings K, colours K between hosts"
            raise BadInput("sums is nccl", where="fix", allowed=allowed)
        _check_limits(instance)
        return instance


# what a model may refuse
_REPLICAS = ("data", "spatial", "schedule", "pipeline", "chunks", "stages", "shard")


def _check_limits(instance: Instance) -> None:
    """Raises BadInput where the model does not allow what is fixed, or cannot be trained at all."""
    pinned = instance.pins
    paired = bool(pinned.schedules) and all(FAMILIES[name].paired for name in pinned.schedules)
    stages = len(pinned.stages or ((),) * (pinned.pipeline or 1) * (pinned.chunks or 1))
    degrees = (
        pinned.data or 1,
        (pinned.spatial or 1) * prod(pinned.group or ()),
        2 if paired else 1,
        stages,
        bool(pinned.shard),
    )
    for found in instance.refusals(*degrees):
        fixed = " ".join(f"{key}={told(pinned)[key]}" for key in _REPLICAS if key in told(pinned))
        named = f"{found.where} " if found.rule == "optimizer" else ""
        raise BadInput(
            f"{named}{found.message}", where=found.where if found.rule == "model" else f"fix {fixed}".strip()
        )


def _alike_in_parts(pinned: Pins) -> Pins:
    """Replicas are not cut into parts where a part would train otherwise than the whole."""
    if "overlap" in pinned.schedules and pinned.chunks != 1:
        raise BadInput(
            f"overlap in parts: {ROUNDS_BY_PART}",
            where="schedule",
            allowed="chunks=1, fp32, or execution eager",
        )
    return pinned if pinned.schedules else replace(pinned, out_of_order=False)


def _choice(profile: Profile, name: str, asked: str | None, usual: str) -> str:
    known = sorted({str(getattr(key, name)) for key in profile.settings})
    if asked is None:
        return usual if usual in known else known[0]
    if asked not in known:
        raise BadInput(f"{name} '{asked}' was not profiled", allowed=", ".join(known))
    return asked


def refuse_impossible(pinned: Pins, cluster: Cluster, batches: Sequence[int]) -> None:
    """Refuses pins that no profile could serve, before minutes go into one.

    Args: `batches` are those asked for; none where they are to be found.
    Raises: BadInput where the micro-batch divides no batch, or the degrees need more devices than there are.
    """
    pinned = check_parts(pinned)
    micro, there = pinned.micro or 1, total_devices(cluster)
    near = (pinned.spatial or 1) * prod(pinned.group or ())
    if batches and all(batch % micro for batch in batches):
        asked = ", ".join(map(str, batches))
        raise BadInput(f"micro is {micro}, the batch {asked}", where="fix", allowed="a divisor of the batch")
    needed = (pinned.data or 1) * (pinned.pipeline or 1) * near
    most = min(there, pinned.devices or there)
    if needed > most:
        said = f"data, pipeline and {'group' if pinned.group else 'spatial'} need {needed} devices together"
        raise BadInput(said, where="fix", allowed=f"a product of at most {most}")


_CHANGED = 20  # configurations looked at for each change that might make an infeasible question feasible


def solve(question: Question) -> Plan:
    """Returns the fastest plan that fits, with its certificate.

    Args: `question` says what is trained, on which machines, with what fixed.
    Raises: BadInput where the question means nothing; Infeasible says what is missing, and what would fit.
    Example: `solve(Question(profile=profiles.load(path), cluster=Cluster.load("cluster.yaml"), batch=64))`
    """
    return solve_with_search(question.instance(), question.effort)[0]


def solve_with_search(instance: Instance, effort: Effort | None = None) -> tuple[Plan, SearchState]:
    """Returns the fastest plan and the search that found it.

    Raises: Infeasible as `solve`.
    """
    effort = effort or Effort()
    found, search = _search(instance, effort)
    plan = _with_shares(instance, found, effort)
    if plan is None:
        raise Infeasible(_missing(search, effort))
    return plan, search


def _missing(search: SearchState, effort: Effort) -> str:
    """Returns what is missing where nothing fits, as far as Ctrl-C lets it be looked for."""
    try:
        with effort.watch.searching():
            return infeasible.report(search.instance, search.queue, search.look, _fits)
    except KeyboardInterrupt:
        return "no plan fits; stopped before it was known what is missing"


def solve_or_none(instance: Instance, effort: Effort | None = None) -> Plan | None:
    """Returns the fastest plan, or None without reasons where nothing fits.

    Args: `instance` may come from `Question.instance` or `changed`.
    """
    found = _search(instance, effort or Effort())[0] if Candidates(instance) else None
    return _with_shares(instance, found, effort or Effort())


def _with_shares(instance: Instance, best: Plan | None, effort: Effort) -> Plan | None:
    """Returns the fastest plan, with uneven shares where replicas on devices of different speed gain by them."""

    def alike(posed: Instance) -> Plan | None:
        return _search(posed, effort)[0] if Candidates(posed) else None

    if best is None:
        return None
    try:
        with effort.watch.aside():
            return uneven(instance, best, alike) or best
    except KeyboardInterrupt:  # before uneven shares were found to be faster
        return best


def _search(instance: Instance, effort: Effort) -> tuple[Plan | None, SearchState]:
    """Returns the plan, if any, and its search.

    Where nothing fits, every family is asked for by name, those too that hardly ever pay.
    """
    searched = orders.searched(instance, effort)
    plan = _plan(searched)
    if plan is None and not instance.pins.schedules:
        parts = instance.pins.out_of_order is not False
        named = tuple(name for name in SEARCHED if parts or not FAMILIES[name].in_parts)
        every = changed(instance, pins=replace(instance.pins, schedules=named))
        searched = orders.searched(every, effort)
        plan = _plan(searched)
    return plan, searched.best


def _plan(searched: orders.Searched) -> Plan | None:
    best = searched.best.best
    if best is None or best.answer is None:
        return None
    return plan_of(searched.best.instance, best.problem, best.answer, searched.certificate())


def _fits(instance: Instance, nearest: infeasible.Nearest | None) -> str | None:
    """Returns the first plan found for a changed question, in words.

    What came nearest before is looked at first, then the most promising configurations.
    """
    state = SearchState(instance=instance, effort=Effort())
    configurations = ranked(instance)
    free = nearest is not None and instance.pins.stages is None
    if nearest is not None and free and nearest.shape in _with_variants(instance, configurations):
        tried = state.look(nearest.shape)
        if tried is not None and int(judge(tried.problem, nearest.cut[None, :])[0]) < UNFIT_NS:
            return str(nearest.shape)
    for configuration in configurations[:_CHANGED]:
        for each in _with_variants(instance, [configuration]):
            tried = state.look(each)
            if tried is not None:
                state.answer(tried)
                if state.best is not None:
                    return str(state.best.shape)
    return None


def _with_variants(instance: Instance, configurations: Sequence[Configuration]) -> list[Configuration]:
    return [each for shape in configurations for each in (shape, *thriftier(instance, shape))]
