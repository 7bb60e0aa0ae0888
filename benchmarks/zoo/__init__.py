"""Models of others, judged one by one as their users would meet us.

`FAMILIES` names the families, each with the packages it needs and its cases by name; a case makes a module, its
batches and its loss. `check.py` judges one case, and `limits.py` does so in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from benchmarks.zoo import others, ours, pictures, strangers, torch_modules, transformers_types
from benchmarks.zoo.parts import Make


class Family(NamedTuple):
    needs: tuple[str, ...]  # packages beside our own dependencies
    cases: Callable[[], dict[str, Make]]
    ranks: bool = False  # cases also train under plans of two ranks, beside a plain loop

    def missing(self) -> list[str]:
        """Returns why the family's packages cannot be had here, each in words."""
        return [why for name in self.needs if (why := _missing(name))]


def _missing(name: str) -> str:
    if find_spec(name) is None:
        return f"{name} is not installed here"
    try:
        import_module(name)
    except Exception as error:  # a package built for another torch fails in ways of its own
        return f"{name} does not load here ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return ""


FAMILIES = {
    "torch": Family(("expecttest",), torch_modules.cases),
    "transformers": Family(("transformers",), transformers_types.cases),
    "timm": Family(("timm",), pictures.timm),
    "torchvision": Family(("torchvision",), pictures.torchvision),
    "monai": Family(("monai",), others.monai),
    "diffusers": Family(("diffusers",), others.diffusers),
    "peft": Family(("peft", "transformers"), others.peft),
    "constructs": Family((), ours.constructs, ranks=True),
    "strangers": Family((), strangers.cases, ranks=True),
    "examples": Family((), ours.examples),
}
