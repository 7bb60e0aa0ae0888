"""Models of others, judged one by one as their users would meet us.

`FAMILIES` names the families, each with the packages it needs and its cases by name; a case makes a module, its
batches and its loss. `check.py` judges one case, and `limits.py` does so in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from benchmarks.zoo import others, ours, pictures, strangers, torch_modules, transformers_types
from benchmarks.zoo.parts import Make


class Family(NamedTuple):
    needs: tuple[str, ...]  # packages beside our own dependencies
    cases: Callable[[], dict[str, Make]]
    ranks: bool = False  # cases also train under plans of two ranks, beside a plain loop

    def missing(self) -> list[str]:
        """Returns the packages that are not installed here."""
        return [name for name in self.needs if find_spec(name) is None]


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
