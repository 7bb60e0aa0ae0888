"""Small words that every text and page shares: numbers with their noun, shares, and the name of a plan's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.plan import Plan

_NUMBERS = ("no", "one", "two", "three", "four")


def plural(count: int, word: str, many: str = "") -> str:
    """Returns a number with its noun, such as "2 stages"; `many` is the noun's plural where it is not regular."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def count(number: int) -> str:
    """Returns a small number as a word."""
    return _NUMBERS[number] if number < len(_NUMBERS) else f"{number:,}"


def listed(word: str, numbers: Sequence[int]) -> str:
    """Returns numbers behind their noun, such as "stages 1, 2"."""
    return f"{word if len(numbers) == 1 else word + 's'} {', '.join(map(str, numbers))}"


def percent(share: float) -> str:
    """Returns a share in per cent; what is not nothing does not read as nothing."""
    if share and abs(share) < 0.0005:
        return "under 0.1 %" if share > 0 else "over -0.1 %"
    return f"{100 * share:.1f} %" if share else "0 %"


def named_model(plan: Plan) -> str:
    """Returns the workload with what it was built from, such as "gpt2 (tiny)"."""
    return plan.model.workload + shown_arguments(plan.model.arguments)


def shown_arguments(arguments: Mapping[str, object]) -> str:
    """Returns arguments in brackets; words speak for themselves, numbers stand behind their name."""
    words = (value if isinstance(value, str) else f"{name}={value}" for name, value in arguments.items())
    return f" ({', '.join(words)})" if arguments else ""
