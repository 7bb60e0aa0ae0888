"""Torch's own operators, each between two convolutions on shards: exact, gathered around, or refused before they run."""

from __future__ import annotations

import sys
import warnings

from benchmarks.harness import Result, Table, main
from tests.runtime.spatial import operators

SHARE = 380 / 434  # of the operators that have such samples, which shards are to be exact for


def run(quick: bool) -> Result:
    """Returns how each operator of torch ends that has a gradient in fp64 and samples of three to five dimensions.

    Args: a `quick` run takes every fiftieth operator.
    """
    warnings.simplefilter("ignore")  # torch's own, of its samples
    names = sorted(operators.database())[:: 50 if quick else 1]
    ended: dict[str, list[str]] = {"exact on shards": [], "gathered around": [], "refused": [], "wrong": []}
    checks = 0
    for name in names:
        try:
            found = list(operators.judged(name))
        except Exception as error:  # whatever it is: neither exact nor refused
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            ended["wrong"].append(name)
            continue
        checks += len(found)
        if any(x.refused for x in found):
            ended["refused"].append(name)
        elif found:
            shards = all(x.ended == operators.SHARDS for x in found)
            ended["exact on shards" if shards else "gathered around"].append(name)
    count = sum(map(len, ended.values()))
    exact = len(ended["exact on shards"]) + len(ended["gathered around"])
    missed = [f"{len(ended['wrong'])} operators are wrong on shards."] if ended["wrong"] else []
    if exact < SHARE * count:
        missed.append(f"{exact} of {count} operators are exact; the aim is {SHARE:.0%}.")
    rows = [
        (how, len(found), ", ".join(found) if how != "exact on shards" else "")
        for how, found in ended.items()
    ]
    table = Table(
        title=f"{count} operators of torch between convolutions: {checks} checks, {exact} operators exact",
        columns=("on 2 and 3 shards and on 2x2", "operators", "names"),
        rows=list(rows),
        notes=(
            f"Of {len(names)} operators with a gradient in fp64, {len(names) - count} have no samples of three to five "
            "dimensions, or draw their numbers.",
            "Exact is within 1e-12 of one process: the output, and the gradients of the input and of all parameters.",
            "An operator is gathered around, or refused, where one of its samples is.",
        ),
    )
    return Result(
        name="operators",
        claim="Torch's own operators between convolutions are exact on shards, or through a gather around them, or "
        f"refused before they run: none is wrong, and {SHARE:.0%} are exact.",
        missed=tuple(missed),
        tables=[table],
    )


if __name__ == "__main__":
    main(run)
