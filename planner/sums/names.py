"""The names of sums, as a plan and a cluster file have them, and which of them so many ranks may use.

ring        one ring, as gloo makes it
direct      each rank adds up its share in the order of ranks, and hands it to the others
rings K     K parts, each round a ring of another stride and over another card
colours K   K parts, each up and down a tree of another colour
nccl        NCCL's own choice; groups of GPUs have no other
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

from pydantic import Field

from planner.errors import BadInput
from planner.files import Part, Positive, Text
from planner.sums.shapes import disjoint, strides

SumKind = Literal["ring", "direct", "rings", "colours", "nccl"]
_PARTS: Final = (2, 3, 4, 8)  # that rings and colours are tried with
MOST_PARTS: Final = max(_PARTS)
_LEAST_PLACES = {8: 16}  # of colours: below, several share links at most numbers of ranks


class SumName(NamedTuple):
    """A way to sum: its kind, and into how many parts it cuts the numbers."""

    kind: SumKind
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.parts}" if self.kind in ("rings", "colours") else self.kind


class SumRate(Part):
    """The rate that a named sum showed over a link: the latency of a round, and the bytes a second of one card."""

    latency_s: float = Field(ge=0, le=3600, strict=True)
    bandwidth_bytes_per_s: Positive


class SumsByName(Part):
    """The ways in which a plan sums gradients, where they are not what a run does by itself."""

    by: tuple[Text, ...] = Field(description="a name a stage: ring, direct, rings K, colours K")
    cards: tuple[Text, ...] = Field(
        (), description="interfaces of a node that parts of a sum go over; empty: the one of all messages"
    )


def parse(text: str, *, where: str = "sums") -> SumName:
    """Returns the sum that a name means.

    Args: `where` says in errors where the name stands.
    Raises: BadInput where nothing is called so.
    """
    found = re.fullmatch(r"(ring|direct|nccl)|(rings|colours) (\d{1,2})", text.strip())
    kind, parts = (found[1] or found[2], int(found[3] or 1)) if found else ("", 0)
    if found is None or (found[2] and parts not in _PARTS):
        counts = ", ".join(map(str, _PARTS))
        raise BadInput(
            f"no sum is called '{text}'",
            where=where,
            allowed=f"ring, direct, rings K, colours K, where K is one of {counts}; nccl between GPUs",
        )
    return SumName(next(each for each in get_args(SumKind) if each == kind), parts)


def offered(name: SumName, places: int, cards: int = 1) -> bool:
    """Returns whether so many ranks on hosts may sum so.

    Rings are as many as have a stride of their own, or as there are cards. Trees share no directed link.

    Args: `places` is the number of ranks, `cards` that of the network cards of each.
    """
    kind, parts = name
    if kind == "rings":
        return places > 1 and parts <= max(cards, len(strides(places)))
    if kind == "colours":
        return max(parts, _LEAST_PLACES.get(parts, 0)) <= places and disjoint(places, parts)
    return kind != "nccl"


def names_for(places: int, cards: int = 1) -> tuple[SumName, ...]:
    """Returns every sum that so many ranks on hosts may use.

    Args: `places` is the number of ranks, `cards` that of the network cards of each.
    """
    every = [SumName("ring"), SumName("direct")]
    every += [SumName(kind, parts) for kind in ("rings", "colours") for parts in _PARTS]
    return tuple(name for name in every if offered(name, places, cards))


def today(places: int) -> SumName:
    """Returns how ranks on hosts sum where a plan does not say: two numbers have one sum, more have an order.

    Args: `places` is the number of ranks.
    """
    return SumName("direct" if places > 2 else "ring")
