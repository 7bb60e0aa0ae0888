"""A bound that anyone can refute: no plan of the space beats it, and the chosen one is within its error of the best.

For each model first the lower bound, the chosen plan and its interval are printed. Then plans of the space are run at
eight ranks: every family, every split of the ranks over axes, cuts at block level, all of them where there are few and
a sample by seed where there are many, and what one would do without a planner. Stages sleep for their profiled times,
slowed alike so that they are long against the clock's grain; processes, messages and sums are real.

Two lies are planted to see whether the experiment can catch any: a planner that was given a wrong cost (one layer at
+30 %), and a bound taken from a closed form.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.candidates import RANKS, Candidate, likeliest, rules, sampled
from benchmarks.fidelity import machines, slowed
from benchmarks.harness import Cell, Result, Table, main
from benchmarks.pool import PlanFailed, Pool, pool
from planner.calibrate import fit
from planner.calibrate.refine import nominal_plan
from planner.cluster import Corrections
from planner.measure import measure
from planner.milp import Instance, Question, solve_with_search
from planner.plan import Plan
from planner.profile import Profile
from planner.workload import load
from runtime.spatial import AloneShard
from runtime.stage import Split

STEPS, QUICK_STEPS = 6, 4
# Plans by seed, those that promise most, the fastest once more: a few minutes a model.
SAMPLED, LIKELY, AGAIN = 20, 6, 5
LARGEST_ERROR = 0.2  # with more the claims say nothing: a busy machine decides nothing, it does not confirm
SAMPLE_S, QUICK_SAMPLE_S = 0.16, 0.1  # that one sample computes for, over the whole model


@dataclass(frozen=True, kw_only=True)
class Subject:
    workload: str
    arguments: dict[str, str]
    batch: int
    grids: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.workload}{' spatial' if self.grids else ''}"


# Eight ranks do not divide these batches, so that replicas alone are no answer.
SUBJECTS = (
    Subject(workload="gpt2", arguments={"size": "tiny"}, batch=12),
    Subject(workload="unet3d", arguments={"size": "tiny"}, batch=12),
    Subject(workload="cosmoflow", arguments={"size": "small"}, batch=4, grids=((2,), (4,))),
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said before anything of it is run."""

    plan: Plan
    bound_ns: float
    error: float  # of a step's time, relative

    @property
    def interval_ns(self) -> tuple[float, float]:
        step = self.plan.prediction.step_ns
        return max(0.0, step * (1 - self.error)), step * (1 + self.error)

    @property
    def regret(self) -> float:
        return 2 * self.error / (1 - self.error) if self.error < 1 else math.inf


def costs_of(subject: Subject, sample_s: float) -> Profile:
    found = measure.profile(
        load(subject.workload, subject.arguments),
        "cpu",
        micros=(1,),
        split=Split(),
        spatial=AloneShard() if subject.grids else None,
        grids=subject.grids,
    )
    keys = [key for key in found.settings if key.micro == 1]
    rows = [found.cost(layer.name, keys[0]) for layer in found.graph.layers]
    return slowed(found, sample_s / sum(row.forward.median + row.backward.median for row in rows))


def wrong(costs: Profile) -> Profile:
    """The heaviest layer at +30 %."""
    key = next(key for key in costs.settings if key.micro == 1)
    heaviest = max(costs.graph.layers, key=lambda layer: costs.cost(layer.name, key).forward.median)
    slower = slowed(costs, 1.3).costs
    own = {k: slower[k] if k.signature == heaviest.signature else row for k, row in costs.costs.items()}
    return replace(costs, costs=own)


def space(costs: Profile, subject: Subject, fitted: Corrections | None) -> Instance:
    here = machines(RANKS).model_copy(update={"fitted": fitted})
    return Question(
        profile=costs, cluster=here, batch=subject.batch, fix={"recompute": "false", "shard": "false"}
    ).instance()


def claimed(asked: Instance, error: float) -> Claim:
    plan, _ = solve_with_search(asked)
    assert plan.certificate is not None
    return Claim(plan=plan, bound_ns=plan.certificate.bound_ns, error=error)


def closed_form(every: Sequence[Candidate], error: float) -> Claim:
    """The lie of a formula: a step is (micro-batches + depth - 1) times the slowest stage, and its least value over the
    plans is taken for a bound."""

    def formula(plan: Plan) -> float:
        slowest = max(
            t.forward_ns + max(t.backward_ns, t.input_grad_ns + t.weight_grad_ns) for t in plan.times
        )
        chunks = plan.schedule.chunks * (2 * plan.schedule.pairs if len(plan.schedule.place) > 1 else 1)
        return chunks * (plan.batch.micros + len(plan.stages) - 1) * slowest

    chosen = min(every, key=lambda candidate: formula(candidate.plan))
    return Claim(plan=chosen.plan, bound_ns=formula(chosen.plan), error=error)


def measured(every: Sequence[Candidate], ranks: Pool, seed: int, steps: int) -> None:
    for candidate in random.Random(seed).sample(list(every), len(every)):
        try:
            candidate.runs.append(ranks.run(nominal_plan(candidate.plan), steps=steps, content="sleep"))
        except PlanFailed as error:
            tell(f"{candidate.name} is left out: {error}")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    beaten_by: float  # of the bound, by the fastest plan: more than the error refutes it
    regret: float  # of the chosen plan against the fastest
    inside: bool  # the interval: by what e is, one plan of ten is not
    claim: Claim

    @property
    def holds(self) -> bool:
        return self.beaten_by <= self.claim.error and self.regret <= self.claim.regret

    @property
    def word(self) -> str:
        if self.claim.error > LARGEST_ERROR:
            return "undecided"
        return "holds" if self.holds else "refuted"


def judged(claim: Claim, chosen_ns: float, fastest_ns: float) -> Verdict:
    low, high = claim.interval_ns
    return Verdict(
        beaten_by=1 - fastest_ns / claim.bound_ns,
        regret=chosen_ns / fastest_ns - 1,
        inside=low <= chosen_ns <= high,
        claim=claim,
    )


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def experiment(
    subject: Subject, ranks: Pool, quick: bool
) -> tuple[list[tuple[Cell, ...]], list[tuple[Cell, ...]]]:
    costs, steps = costs_of(subject, QUICK_SAMPLE_S if quick else SAMPLE_S), QUICK_STEPS if quick else STEPS
    plain = space(costs, subject, None)
    tuning, _ = sampled(plain, 3 if quick else 8, seed=2)
    for number in range(2):
        measured(tuning, ranks, number, steps)
    fitted = fit([min(candidate.runs, key=lambda run: run.step_ns) for candidate in tuning if candidate.runs])
    asked = space(costs, subject, fitted)
    claim = claimed(asked, fitted.step_spread)
    low, high = claim.interval_ns
    tell(
        f"{subject.name}: no plan is faster than {claim.bound_ns / 1e6:.1f} ms; the chosen one, {_shape(claim.plan)}, takes "
        f"{low / 1e6:.1f} to {high / 1e6:.1f} ms and is within {claim.regret:.1%} of the best"
    )
    chosen = Candidate(name="chosen", plan=claim.plan)
    lie = Candidate(
        name="chosen by a wrong cost", plan=claimed(space(wrong(costs), subject, fitted), claim.error).plan
    )
    lied = Claim(plan=lie.plan, bound_ns=_bound(lie.plan), error=claim.error)
    true = _with_true_times(lie, asked)
    others, total = sampled(asked, 3 if quick else SAMPLED, seed=1)
    every = [chosen, true, *others, *likeliest(asked, 2 if quick else LIKELY), *rules(asked)]
    for number in range(2):
        again = every if number == 0 else _contenders(every, 3 if quick else AGAIN)
        measured(again, ranks, number, steps)
        every = [candidate for candidate in every if candidate.runs]
    assert chosen in every and true in every, "the chosen plan did not run"
    formula = closed_form(every, claim.error)
    fastest = min(every, key=lambda candidate: candidate.measured_ns)
    rows = [_row(subject, candidate, claim, total) for candidate in _shown(every, chosen, fastest)]
    by_formula = next(candidate for candidate in every if candidate.plan is formula.plan)
    verdicts = [
        ("ours", judged(claim, chosen.measured_ns, fastest.measured_ns)),
        ("control: a cost wrong by 30 %", judged(lied, true.measured_ns, fastest.measured_ns)),
        ("control: a closed form as bound", judged(formula, by_formula.measured_ns, fastest.measured_ns)),
    ]
    return rows, [_verdict(subject, name, verdict, len(every), total) for name, verdict in verdicts]


def _bound(plan: Plan) -> float:
    assert plan.certificate is not None
    return plan.certificate.bound_ns


def _with_true_times(lie: Candidate, asked: Instance) -> Candidate:
    """The liar's plan as the stages really are."""
    fix = {
        "data": lie.plan.axes.data,
        "pipeline": lie.plan.axes.pipeline,
        "micro": lie.plan.batch.micro,
        "schedule": lie.plan.schedule.family,
        "pairs": lie.plan.schedule.pairs,
        "chunks": lie.plan.schedule.chunks,
        "stages": [list(stage.layers) for stage in lie.plan.stages],
        "recompute": "false",
        "shard": "false",
    }
    if lie.plan.axes.spatial > 1:
        fix["spatial"] = "x".join(map(str, lie.plan.stages[0].spatial))
    true = Question(profile=asked.profile, cluster=asked.cluster, batch=asked.batch, fix=fix).instance()
    return Candidate(name=lie.name, plan=solve_with_search(true)[0])


def _contenders(every: Sequence[Candidate], most: int) -> list[Candidate]:
    """The chosen ones and the fastest so far, once more: a claim is not left to one lucky run."""
    return [*every[:2], *sorted(every[2:], key=lambda candidate: candidate.measured_ns)[:most]]


def _shown(every: Sequence[Candidate], *always: Candidate) -> list[Candidate]:
    """The fastest ten, the rules, and the slowest."""
    ordered = sorted(every, key=lambda candidate: candidate.measured_ns)
    kept = [c for c in ordered if c in ordered[:10] or c in always or c is ordered[-1] or " x " not in c.name]
    return kept


def _shape(plan: Plan) -> str:
    axes = plan.axes
    space_ = f" x spatial {axes.spatial}" if axes.spatial > 1 else ""
    return (
        f"{plan.schedule.family} data {axes.data} x pipeline {axes.pipeline}{space_}, "
        f"{plan.batch.micros} x {plan.batch.micro}"
    )


def _row(subject: Subject, candidate: Candidate, claim: Claim, total: int) -> tuple[Cell, ...]:
    said, took = candidate.plan.prediction.step_ns, candidate.measured_ns
    return (
        subject.name,
        candidate.name if " x " in candidate.name else f"{candidate.name}: {_shape(candidate.plan)}",
        said / 1e6,
        took / 1e6,
        f"{took / said - 1:+.1%}",
        f"{took / claim.bound_ns - 1:+.1%}",
    )


def _verdict(subject: Subject, name: str, verdict: Verdict, ran: int, total: int) -> tuple[Cell, ...]:
    claim = verdict.claim
    return (
        subject.name,
        name,
        f"{ran} of {total}",
        claim.bound_ns / 1e6,
        f"{claim.error:.1%}",
        f"{max(0.0, verdict.beaten_by):.1%}",
        f"{verdict.regret:.1%}",
        f"{claim.regret:.1%}",
        verdict.inside,
        verdict.word,
    )


def missed(verdicts: Sequence[tuple[Cell, ...]]) -> Iterator[str]:
    """Yields each claim of ours that does not hold and each lie that is not caught, undecided ones among both."""
    for model, who, *_, verdict in verdicts:
        if verdict != ("holds" if who == "ours" else "refuted"):
            yield f"On {model} the verdict on {who} is '{verdict}'."


def run(quick: bool) -> Result:
    rows, verdicts = [], []
    with pool() as ranks:
        for subject in SUBJECTS[:1] if quick else SUBJECTS:
            more, found = experiment(subject, ranks, quick)
            rows += more
            verdicts += found
    ours = [row for row in verdicts if row[1] == "ours"]
    lies = [row for row in verdicts if row[1] != "ours"]
    caught = sum(row[-1] == "refuted" for row in lies)
    return Result(
        name="refute",
        claim="No plan of the space beats the bound by more than the error of prediction, and the chosen one is within "
        "2e/(1-e) of the best; both planted lies are caught.",
        missed=tuple(missed(verdicts)),
        tables=[
            Table(
                title="Claims, made before the runs",
                columns=(
                    "model",
                    "who",
                    "plans run, of how many",
                    "bound ms",
                    "error e",
                    "bound beaten by",
                    "chosen over best",
                    "2e/(1-e)",
                    "in its interval",
                    "verdict",
                ),
                rows=verdicts,
                notes=(
                    f"Ours: {sum(row[-1] == 'holds' for row in ours)} of {len(ours)} hold. Lies caught: {caught} of "
                    f"{len(lies)}. Undecided are those whose error e is above {LARGEST_ERROR:.0%}: the machine was busy.",
                    f"Of a model's plans {3 if quick else SAMPLED} are drawn by seed, evenly over the shapes, beside the "
                    f"{2 if quick else LIKELY} that promise most and the rules of others: the space is sampled, not exhausted.",
                    "e is the error that corrections leave on runs that they were not fitted to; the plans that they "
                    "were fitted to are not among those judged.",
                ),
            ),
            Table(
                title="The fastest plans, the rules of others, and the slowest",
                columns=("model", "plan", "predicted ms", "measured ms", "error", "over the bound"),
                rows=rows,
            ),
        ],
    )


if __name__ == "__main__":
    main(run)
