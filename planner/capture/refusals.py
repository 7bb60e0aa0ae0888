"""Says a failed export as one message: the user's own line, the module, and what to do about it.

Modules that cannot be captured as they stand are refused before any export: lazy or wrapped ones, overlapping
parameters, and hooks that change gradients, for which a captured graph has no place. Hooks of forward passes are traced.
An opaque module runs its own hooks as ever, except those of its parameters, whose place others take.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedParameter

from planner.capture.flatten import unnamed
from planner.capture.left_behind import CARRIED, OF_NORM
from planner.capture.traced_graph import LOSS, place_of
from planner.errors import BadInput
from planner.workload import where_raised

OPAQUE = "the path of such a module, as opaque = ['path.of.a.module'] in a module file"

# What a failed export says, or the user's line and the functions it ran in, and what to do about it.
CURES: tuple[tuple[str, str], ...] = (
    (r"layerdrop|LayerDrop|layer_drop", f"layerdrop=0 in the model's configuration, or else {OPAQUE}"),
    (
        r"_compute_mask_indices|_mask_hidden_states|apply_spec_augment",
        "apply_spec_augment=False in the model's configuration",
    ),
    (
        r"labels\.(max|min)\(\)",
        "labels as targets of the batch, and the loss of the model's outputs in loss()",
    ),
    (
        r"shifted_input_ids",
        "decoder_input_ids among the inputs, labels as targets, and the loss of the model's outputs in loss()",
    ),
    (r"past_key_value|DynamicCache|use_cache", "use_cache=False in the model's configuration"),
    (
        r"pack_padded_sequence|PackedSequence|_pack_padded|pad_packed|max_batch_size|hx = torch\.zeros\(",
        "padded sequences, with a mask where the loss must not see the padding",
    ),
    (r"nested_tensor|NestedTensor", "padded tensors with a mask in the place of nested tensors"),
    (
        r"Unsupported input type",
        "tuples and dictionaries of tensors from batch(), or torch.export.register_dataclass(TheClass) beside build()",
    ),
    (
        r"found at least two devices",
        "all tensors of the model on the device of its parameters, as parameters or buffers that move with it",
    ),
    (r"\.numpy\(\)|\.tolist\(\)", f"operations of torch in the place of numpy's; or {OPAQUE}"),
    (
        r"autograd\.grad|uses a tensor that is no parameter",
        f"the gradient as a formula in forward(), or {OPAQUE}",
    ),
)


WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


def cure(said: str) -> str:
    """Returns what to do about a failure that is known; empty where none is.

    Args: `said` is the message with the user's line and the names of the functions that it ran in.
    """
    return next((text for pattern, text in CURES if re.search(pattern, said)), "")


def module_of(error: BaseException) -> str:
    """Returns the path of the innermost module in whose forward an error was raised, or "loss" for the loss function.

    Returns: an empty path where there is none.
    """
    modules = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [module for module in modules if isinstance(module, nn.Module)]
    paths = {id(part): path for module in found[:2] for path, part in module.named_modules()}
    path = next((paths[id(module)] for module in reversed(found) if id(module) in paths), "")
    return re.sub(r"^(_export_root\.?)?(model\.?)?", "", path)


def refuse_unready(module: nn.Module, where: str) -> None:
    """Refuses lazy modules, whose weights have no sizes yet, and compiled ones, whose operations cannot be seen.

    Args: `where` names the workload.
    Raises: BadInput, which names the module.
    """
    for name, part in module.named_modules():
        said = f"module '{name}'" if name else "the model"
        if any(isinstance(x, UninitializedParameter) for x in part._parameters.values()):
            raise BadInput(
                f"{said} is lazy ({type(part).__name__}): its weights have no sizes before the first forward pass",
                where=where,
                allowed="one forward pass of an example in build() before it returns the module",
            )
        if type(part).__name__ in WRAPPERS:
            raise BadInput(
                f"{said} is {type(part).__name__}, which replicates or parts what a plan places",
                where=where,
                allowed="the module inside, such as model.module",
            )
        for key, x in part._parameters.items():
            if x is not None and not isinstance(x, UninitializedParameter) and (why := _no_start(x)):
                raise BadInput(
                    f"parameter '{f'{name}.' if name else ''}{key}' {why[0]}", where=where, allowed=why[1]
                )
        if isinstance(part, torch.jit.ScriptModule) and type(part).__name__ != "TopLevelTracedModule":
            raise BadInput(
                f"{said} is TorchScript, whose operations cannot be seen",
                where=where,
                allowed="the module as it is before torch.jit.script",
            )


def refuse_overlaps(module: nn.Module, where: str) -> None:
    """Refuses parameters that lie in the same memory and are not one, since a plan holds each in its own.

    Args: `where` names the workload.
    Raises: BadInput, which names both.
    """
    every = [
        (name, x) for name, x in module.named_parameters() if x.numel() and not isinstance(x, FakeTensor)
    ]
    last: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, x in every:
        if x.is_meta or x.layout != torch.strided:
            continue
        there = last.setdefault(x.untyped_storage().data_ptr(), [])
        other = next((known for known, y in there if _meet(x.detach(), y)), None)
        if other is not None:
            raise BadInput(
                f"parameters '{other}' and '{name}' are two and lie in the same memory",
                where=where,
                allowed="one parameter under both names, such as b.weight = a.weight; or a clone() of one",
            )
        there.append((name, x.detach()))


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors of one storage have an element in common."""
    marks = torch.zeros(a.untyped_storage().nbytes() // min(a.itemsize, b.itemsize), dtype=torch.bool)
    marks.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _no_start(parameter: torch.Tensor) -> tuple[str, str] | None:
    """Returns why a parameter cannot be trained as it stands, and what to do about it; None where it can."""
    if parameter.is_inference():
        made = "was made under torch.inference_mode(), so that nothing can train it"
        return made, "a model made outside inference_mode(), or a copy.deepcopy() of this one made outside"
    if isinstance(parameter, FakeTensor) or not parameter.is_meta:
        return None
    return (
        "is on the meta device and has no values",
        "weights first: model.to_empty(device='cpu') and load_state_dict()",
    )


def refused(failure: Exception, where: str, module: nn.Module) -> BadInput:
    """Returns a failed export as one message with the user's own line.

    Args: where no line is known, that of the forward pass of `module` stands in the message, or else `where`.
    """
    error, where = failure.__cause__ or failure, place_of(module, "", where)
    if isinstance(error, BadInput):
        return (
            error
            if error.where
            else BadInput(error.what, where=where_raised(error, where), allowed=error.allowed)
        )
    text = str(error)
    if "a fake tensor in the exported program constant" in text or "from fake tensor input" in text:
        return unnamed(where_raised(error, getattr(failure, "unnamed", "") or where))
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    place, code = where_raised(error, _line_of_library(error) or where), ""
    call = re.search(
        r'The following call raised this error:\s+File "(.+?)", line (\d+), in .*\n\s*(.*)', text
    )
    if call is not None:
        place, code = f"{call[1]}:{call[2]}", f" in `{call[3].strip()}`"
    ran = [f"{frame.name} {frame.line}" for frame in traceback.extract_tb(error.__traceback__)]
    known, path = cure("\n".join([type(error).__name__, text, *ran])), module_of(error)
    part = "the loss" if path == LOSS else f"module '{path}'"
    code += f" of {part}" if path else ""
    if depends_on_values(failure):
        return BadInput(
            f"what runs depends on the values of tensors{code}, which no plan can follow: {first:.160}",
            where=place,
            allowed=known
            or "branches and shapes that only settings and the shapes of the inputs decide; or the paths of "
            "such modules, "
            f"as opaque = ['{path or 'path.of.a.module'}'] in a module file",
        )
    given = (
        "inputs as forward() takes them: a tuple by position, a dictionary by the names of its arguments"
        if isinstance(error, TypeError) and "forward()" in first
        else ""
    )
    inside = f" in {part}" if path else ""
    whole = (
        f"{'the loss' if path == LOSS else 'the module'} as one layer: opaque = ['{path}'] in a module file"
        if path
        else "what is named here in a module of its own, taken as one layer: opaque = ['path.of.a.module'] in a module file"
    )
    said = f"cannot be captured{inside}: {type(error).__name__}: {first:.300}"
    return BadInput(said, where=place, allowed=known or given or whole)


def _line_of_library(error: BaseException) -> str:
    """Returns the innermost line in the trace of an error of a library other than torch; empty where there is none."""
    own = str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" in frame.filename and not frame.filename.startswith(own):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def depends_on_values(failure: Exception) -> bool:
    """Returns whether an export failed because sizes or branches depend on the values of tensors.

    Args: `failure` is the CannotTrace, or its cause.
    """
    error = failure.__cause__ or failure
    words = ("data-dependent", "data dependent", "DataDependent", "Could not guard", "unbacked")
    return any(word in f"{type(error).__name__} {error}" for word in words)


INSTEAD = "the same in an autograd.Function that forward() calls, or in the workload's optimizer"


def refuse_hooks(module: nn.Module, where: str, opaque: Collection[str]) -> None:
    """Refuses hooks on gradients that were registered before the capture.

    Args: modules below the paths in `opaque` may have hooks of their own.
    Raises: BadInput, which names the parameter or module.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise _refused(f"the gradient of parameter '{name}' has a hook (register_hook)", where)
        if parameter._post_accumulate_grad_hooks:
            hook = "register_post_accumulate_grad_hook"
            raise _refused(f"the gradient of parameter '{name}' has a hook ({hook})", where)
    inside = tuple(f"{path}." for path in opaque)
    for name, part in module.named_modules():
        if f"{name}.".startswith(inside):
            continue
        for kind in ("backward_hook", "backward_pre_hook"):
            if getattr(part, f"_{kind}s"):
                said = f"module '{name}'" if name else "the model"
                raise _refused(f"{said} has a hook on its gradients (register_full_{kind})", where)


def refuse_changes(changes: list[tuple[str, str]], module: nn.Module) -> None:
    """Refuses a module whose forward pass goes on changing plain attributes.

    Args: `changes` are their keys, of which BadInput names the first three; an empty list is well.
    """
    if changes:
        names = ", ".join(f"'{path}.{key}'".replace("'.", "'") for path, key in changes[:3])
        raise BadInput(
            f"forward() changes {names}, which a plan would hold at what it is at the capture",
            where=place_of(module, ".".join(filter(None, changes[0])), f"module '{changes[0][0]}'"),
            allowed=OF_NORM if changes[0][1] == "momentum" else CARRIED,
        )


@contextlib.contextmanager
def refusing_hooks() -> Iterator[None]:
    """Refuses hooks that are registered on tensors while it is entered.

    Raises: BadInput where `forward` registers one.
    """
    kinds = ("register_hook", "register_post_accumulate_grad_hook")
    originals = {kind: getattr(Tensor, kind) for kind in kinds}

    def refused(kind: str) -> object:
        def register(tensor: Tensor, hook: object) -> None:
            raise _refused(f"forward() registers a hook on the gradient of a tensor ({kind})", "")

        return register

    try:
        for kind in kinds:
            setattr(torch.Tensor, kind, refused(kind))
        yield
    finally:
        for kind, original in originals.items():
            setattr(torch.Tensor, kind, original)


def _refused(what: str, where: str) -> BadInput:
    return BadInput(f"{what}, which a plan would not run", where=where, allowed=INSTEAD)
