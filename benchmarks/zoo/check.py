"""Judges one model: what a user would do with it, beside the module's own training and evaluation.

The module trains two steps of two micro-batches by itself. Beside it stand the captured graph cut at every layer, and
the runtime in this process; then the evaluation of the runtime beside `module.eval()`, and a plan for one node.
"""

from __future__ import annotations

import math
import os
import re
import resource
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.zoo.followed import SHAPES, Differs, close, costs_of, follow, plain_loop
from benchmarks.zoo.parts import Case, Make
from benchmarks.zoo.strangers import OPTIMIZERS
from planner.capture import Captured, StageModule, capture, check_training, cut, materialise
from planner.capture.captured import attribute
from planner.capture.stage_modules import whole
from planner.capture.traced_graph import call
from planner.cluster import Cluster
from planner.errors import ShardwrightError
from planner.measure import profile
from planner.milp import Question, solve
from planner.verify import violations
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime.cli import backward_split
from runtime.runfolder import LOSS
from runtime.train import Model, job_of, prepare
from runtime.train.stop import NoPulse
from runtime.train.training import Training
from runtime.world import alone
from tests.planner.staged import SEED, random_boundaries, run_stages
from tests.runtime.plans import plan_for

Judgement = Literal["equal", "refused", "WRONG", "CRASH", "no model"]
MICRO, MICROS, STEPS = 2, 2, 2
PLANNED_MICROS, PLANNED_BATCH = (1, 2), 8
LARGEST = 120 << 20  # bytes of parameters of a model that is trained here, not only captured and planned
ROUNDED = ("stages", "runtime", "evaluation")  # steps of which numbers are compared
LOSS_APART, APART = 1e-6, 1e-5  # relative; of a tensor to its largest element
# Parameters that lie elsewhere in memory are summed in another order, which normalisations of few numbers enlarge.
PLACED = 20.0
NODE = Path(__file__).parents[2] / "plans" / "clusters" / "one-node.yaml"
DEVICES = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one step of the way came to, where it is not equal."""

    step: str  # model, capture, stages, runtime, evaluation or plan
    judgement: Judgement
    said: str
    cured: bool = True  # of a refusal: the message has a place in the user's files and says what to do


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is found of one case; no findings where all is equal."""

    case: str
    findings: tuple[Finding, ...] = ()
    layers: int = 0
    symbolic: bool = False
    trained: bool = False  # a model too large for this machine is captured and planned alone
    cpu_s: float = 0.0

    @property
    def judgement(self) -> Judgement:
        return max((x.judgement for x in self.findings), key=_RANK.index, default="equal")


_RANK: list[Judgement] = ["equal", "refused", "no model", "WRONG", "CRASH"]


@dataclass
class Trained:
    """What a training leaves: losses of micro-batches, gradients of the first step, and the state at the end."""

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    draws: bool = False  # random numbers


def check(name: str, make: Make, *, plans: bool = True, ranks: bool = False) -> Verdict:
    """Returns what is found of a case; what differs in single precision counts where it differs in double, too.

    Args: as `check_once` has them.
    """
    found = check_once(name, make, plans=plans, ranks=ranks)
    if not any(x.judgement == "WRONG" and x.step in ROUNDED for x in found.findings):
        return found
    exact = check_once(name, partial(doubled, make), plans=False)
    if exact.findings:
        return found
    kept = tuple(x for x in found.findings if x.step not in ROUNDED)
    return replace(found, findings=kept, cpu_s=found.cpu_s + exact.cpu_s)


def doubled(make: Make) -> Case:
    """Returns a case in double precision, where rounding is nothing that a normalisation could enlarge."""
    module, batch, loss = make()

    def exact(n: int) -> tuple[object, object]:
        given = batch(n)
        return pytree.tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, given)  # type: ignore[no-any-return]

    return module.double(), exact, loss


def check_once(name: str, make: Make, *, plans: bool = True, ranks: bool = False) -> Verdict:
    """Returns what is found of a case.

    Args: `make` makes the module with its batch and loss, the same at every call. Without `plans` no plan is made,
        which is the slower half. With `ranks` it also trains under plans of two ranks, beside a plain loop.
    """
    start, findings, own = _cpu_s(), list[Finding](), list[Finding]()
    with _noting(own, "model", ours=False):
        workload = workload_of(name, make)
    if own:  # a setting that this version of the library does not take
        return Verdict(case=name, findings=tuple(own), cpu_s=_cpu_s() - start)
    captured: Captured | None = None
    by_itself: Trained | None = None
    with _noting(findings, "capture"):
        made = capture(workload, micro=MICRO)
        check_training(made, workload, samples=MICRO)
        captured = made
    if captured is None or sum(row.bytes for row in captured.graph.parameters) <= LARGEST:
        with _noting(own, "model", ours=False):
            by_itself = train_module(workload)
    if own:
        return Verdict(case=name, findings=tuple(own), cpu_s=_cpu_s() - start)
    if captured is not None and by_itself is not None:
        with _noting(findings, "stages"):
            _stages(workload, captured, by_itself)
        with _noting(findings, "runtime"), tempfile.TemporaryDirectory() as folder:
            _runtime(findings, workload, captured, by_itself, Path(folder) / "run")
    if captured is not None and plans:
        with _noting(findings, "plan"):
            _planned(workload)
    if captured is not None and by_itself is not None and ranks:
        _followed(findings, workload)
    return Verdict(
        case=name,
        findings=tuple(findings),
        layers=len(captured.graph.layers) if captured else 0,
        symbolic=captured is not None and captured.graph.symbolic_batch,
        trained=by_itself is not None,
        cpu_s=_cpu_s() - start,
    )


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextmanager
def _noting(findings: list[Finding], step: str, ours: bool = True) -> Iterator[None]:
    """Notes how a step ends that does not end well; what is not `ours` is the module's own code alone."""
    try:
        yield
    except Differs as error:
        findings.append(Finding(step=step, judgement="WRONG", said=str(error)))
    except Exception as error:
        if not ours:
            said = f"{type(error).__name__}: {_first_line(error)}"
            findings.append(Finding(step=step, judgement="no model", said=said))
        elif isinstance(error, ShardwrightError):
            place = re.search(r"\S+\.py:\d+|(module|parameter|loss holds) '", str(error))
            cured = (bool(place) and "allowed: " in str(error)) or str(error).startswith("fix ")
            findings.append(Finding(step=step, judgement="refused", said=_first_line(error), cured=cured))
        else:
            said = f"{type(error).__name__}: {_first_line(error)} ({_ours(error)})"
            findings.append(Finding(step=step, judgement="CRASH", said=said))


def _first_line(error: Exception) -> str:
    """Returns the first line of a message, its files without the folders of this machine."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return re.sub(r"/\S*/site-packages/", "", line.replace(f"{Path(__file__).parents[2]}/", ""))[:400]


def _ours(error: Exception) -> str:
    """Returns the innermost line of ours in the trace of an error."""
    root = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(root) and "site-packages" not in frame.filename:
            return f"{os.path.relpath(frame.filename, root)}:{frame.lineno}"
    return "nowhere"


def workload_of(name: str, make: Make) -> Workload:
    """Returns a case as a workload, whose module has the same weights whenever it is built."""

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make()[0]

    _, batch, loss = make()
    functions: dict[str, Callable[..., object]] = {
        "build": build,
        "batch": batch,
        "loss": loss,
        "optimizer": OPTIMIZERS.get(name, _optimizer),
    }
    return Workload(name=name, where=name, arguments={}, functions=functions)


def _optimizer(named: Iterator[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Plain descent: its step is as exact as the gradient, where AdamW makes large steps of rounding noise."""
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.01, momentum=0.9)


def batches(workload: Workload) -> list[tuple[object, object]]:
    """Returns the micro-batches of all steps and one for the evaluation; samples of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return [workload.batch(MICRO) for _ in range(STEPS * MICROS + 1)]


def _copy(tree: object) -> object:
    return pytree.tree_map_only(Tensor, Tensor.clone, tree)


def _scalars(made: object) -> tuple[Tensor, ...]:
    return tuple(made) if isinstance(made, tuple) else (made,)  # type: ignore[arg-type]


def train_module(workload: Workload) -> Trained:
    """Trains the module by itself, as its author would; both the loss and the state have to be numbers."""
    found, module = Trained(), workload.build().train()
    given = batches(workload)
    optimizer = workload.optimizer([(n, p) for n, p in module.named_parameters() if p.requires_grad])
    for step in range(STEPS):
        counts = 0.0
        optimizer.zero_grad()
        for inputs, targets in given[step * MICROS : (step + 1) * MICROS]:
            torch.manual_seed(SEED)
            before = torch.get_rng_state()
            made = _scalars(workload.loss(call(module, _copy(inputs)), _copy(targets)))
            found.draws |= not torch.equal(before, torch.get_rng_state())
            found.losses.append(float(made[0]))
            counts += float(made[1]) if len(made) > 1 else 0.0
            (made[0] if len(made) > 1 else made[0] / MICROS).backward()
        _divide(module.parameters(), counts)
        if step == 0:
            found.gradients = _gradients(module)
        optimizer.step()
    found.after = _state(module)
    inputs, targets = given[-1]
    with torch.no_grad():
        found.losses.append(
            float(_scalars(workload.loss(call(module.eval(), _copy(inputs)), _copy(targets)))[0])
        )
    if not all(math.isfinite(x) for x in found.losses) or not all(
        bool(torch.isfinite(x).all()) for x in found.after.values() if x.is_floating_point()
    ):
        raise ValueError("its own training gives infinite or undefined numbers")
    found.losses.pop()
    return found


def _divide(parameters: Iterator[nn.Parameter], count: float) -> None:
    for parameter in parameters:
        if count and parameter.grad is not None:
            parameter.grad /= count


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def _state(module: nn.Module) -> dict[str, Tensor]:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: x.detach().clone() for name, x in tensors.items()}


def _stages(workload: Workload, captured: Captured, want: Trained) -> None:
    """Raises Differs where the graph, or its stages cut at every layer or at random, train otherwise."""
    layers = len(captured.graph.layers)
    ways = [[], list(range(1, layers)), *random_boundaries(layers, SEED)[:2]]
    for boundaries in ways:
        cuts = "the graph" if not boundaries else f"{len(boundaries) + 1} stages"
        stages = cut(captured, boundaries) if boundaries else [whole(captured)]
        _compare(cuts, train_stages(workload, captured, stages), want, captured)


def train_stages(workload: Workload, captured: Captured, stages: list[StageModule]) -> Trained:
    """Trains stages one after the other in one process, as a pipeline would."""
    found, given, initial = Trained(), batches(workload), captured.initial(workload.build())
    for stage in stages:
        materialise(stage, initial)
    held = [(name, p) for stage in stages for name, p in stage.named_parameters() if p.requires_grad]
    optimizer = workload.optimizer(held)
    for step in range(STEPS):
        total: dict[str, Tensor] = {}
        counts = 0.0
        for inputs, targets in given[step * MICROS : (step + 1) * MICROS]:
            values = captured.batch_values(_copy(inputs), _copy(targets))
            made = run_stages(captured.graph, stages, values)
            found.losses.append(float(made.loss[0]))
            several = len(made.loss) > 1
            counts += float(made.loss[1]) if several else 0.0
            for name, gradient in made.gradients.items():
                part = gradient if several else gradient / MICROS
                total[name] = total[name] + part if name in total else part
        for name, parameter in held:
            parameter.grad = total[name] / counts if counts and name in total else total.get(name)
        if step == 0:
            found.gradients = {n: g / counts if counts else g.clone() for n, g in total.items()}
        optimizer.step()
    for stage in stages:
        found.after |= _state(stage)
    return found


def _compare(who: str, have: Trained, want: Trained, captured: Captured, slack: float = 1.0) -> None:
    """Raises Differs at the first loss, gradient or state that is too far apart, `slack` times as far as it may."""
    for i, (a, b) in enumerate(zip(have.losses, want.losses, strict=True)):
        if abs(a - b) > slack * LOSS_APART * max(abs(b), 1e-3) * (1 if i < MICROS else 10):
            raise Differs(f"{who}: loss of micro-batch {i} is {a:.9g}, by itself {b:.9g}")
    if have.gradients:
        if lacking := want.gradients.keys() ^ have.gradients.keys():
            raise Differs(f"{who}: gradients of one alone: {', '.join(sorted(lacking)[:3])}")
        close(f"{who}: gradient of", have.gradients, want.gradients, APART)
    rows = {row.name for row in (*captured.graph.parameters, *captured.graph.buffers)}
    known = {name: x for name, x in want.after.items() if name in rows and name in have.after}
    close(f"{who}: after two steps,", have.after, known, slack * APART)


def _runtime(
    findings: list[Finding], workload: Workload, captured: Captured, want: Trained, folder: Path
) -> None:
    """Trains and evaluates by the runtime; notes an evaluation that is not that of the module."""
    training = _opened(workload, captured, folder)
    given = [captured.batch_values(_copy(a), _copy(b)) for a, b in batches(workload)]
    have = Trained()
    for step in range(STEPS):
        losses = training.step(dict(enumerate(given[step * MICROS : (step + 1) * MICROS])))
        have.losses += [losses[m][LOSS] for m in range(MICROS)]
    training.rank.updater.settle()
    rank = training.rank
    have.after = {n: x.detach().clone() for n, x in {**rank.parameters, **rank.buffers}.items()}
    if not want.draws and captured.graph.loss_kind == "mean":  # its random numbers are others, on purpose
        _compare("the runtime", have, want, captured, PLACED)
    with _noting(findings, "evaluation"):
        _evaluation(workload, captured, training, have.after, given[-1])


def _opened(workload: Workload, captured: Captured, folder: Path) -> Training:
    plan = plan_for(captured.graph, workload.name, workers=1, micros=MICROS, micro=MICRO)
    model = Model(plan, workload, captured)
    paths, job = prepare(model, folder, job_of(plan, STEPS, {}))
    begin = checkpoints.latest(paths.checkpoints)
    assert begin is not None
    return Training(model, begin, alone(torch.device("cpu")), job, paths, NoPulse())


def _apart(a: float, b: float) -> bool:
    return abs(a - b) > LOSS_APART * max(abs(b), 1e-3)


@contextmanager
def _without_fast_path() -> Iterator[None]:
    usual = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(usual)


def _evaluation(
    workload: Workload,
    captured: Captured,
    training: Training,
    state: Mapping[str, Tensor],
    values: dict[str, Tensor],
) -> None:
    module = workload.build()
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, x in state.items():  # plain tensors among them, which a plan carries as buffers
            held = known.get(name, attribute(module, name))
            if held is not None:
                held.copy_(x)
    module.eval()
    inputs, targets = batches(workload)[-1]

    def own() -> tuple[float, bool]:
        torch.manual_seed(SEED)
        with torch.no_grad():
            before = torch.get_rng_state()
            made = _scalars(workload.loss(call(module, _copy(inputs)), _copy(targets)))
            return float(made[0]), not torch.equal(before, torch.get_rng_state())

    found = training.evaluate_batch(dict.fromkeys(range(MICROS), values))
    a, (b, draws) = found[0][LOSS], own()
    if _apart(a, b) and not draws and "fast path" in check_training(captured, workload):
        with _without_fast_path():  # what the profile says: an evaluation takes none
            b, _ = own()
    if _apart(a, b) and not draws:
        raise Differs(f"evaluation: the loss is {a:.9g}, of module.eval() {b:.9g}")
    after = {**training.rank.parameters, **training.rank.buffers}
    moved = [name for name, x in after.items() if not torch.equal(x, state[name])]
    if moved:
        raise Differs(f"evaluation: it changes '{moved[0]}'")


def _planned(workload: Workload) -> None:
    """Plans for a node of two devices and verifies the plan."""
    cluster = two_devices()
    costs = profile(workload, "roofline:H100-80GB", micros=PLANNED_MICROS, split=backward_split())
    plan = solve(Question(profile=costs, cluster=cluster, batch=PLANNED_BATCH))
    found = violations(plan, profile=costs, cluster=cluster)
    if found:
        raise Differs(f"the plan that plan gives, verify refuses: {found[0]}")


def _followed(findings: list[Finding], workload: Workload) -> None:
    with _noting(findings, "profile"):
        costs, plain = costs_of(workload), plain_loop(workload)
        for shape in SHAPES:
            with _noting(findings, f"{shape} 2"):
                follow(workload, costs, plain, shape)


def two_devices() -> Cluster:
    """Returns one node of the catalogue's largest device, with two of them."""
    whole_node = Cluster.load(NODE)
    nodes = [group.model_copy(update={"devices_per_node": DEVICES}) for group in whole_node.nodes]
    return whole_node.model_copy(update={"nodes": tuple(nodes)})
