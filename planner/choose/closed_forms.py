"""What one layer of a transformer sends in closed form, by the way in which its group cuts it.

The layer has the linear layers qkv, out, up and down, of width h and 4h, and M tokens of the whole group. Volumes are
elements that a rank sends forward and backward. `p` ranks are q x q in 2-D, d x q x q in 2.5-D and q x q x q in 3-D.

    1-D                   8 (p-1)/p Mh
    2-D                   3 (q-1)/q^2 (7 Mh + 12 h^2)
    2.5-D                 3 (q-1)/q^2 (7 Mh/d + 12 h^2) + 2 (d-1)/(d q^2) 12 h^2
    3-D                   2 (q-1)/q^3 (16 Mh + 12 h^2)
    3-D, gathered again   that, and (q-1)/q^3 (7 Mh + 12 h^2)
    FSDP                  36 (p-1)/p h^2
    Ulysses               8 (p-1)/p^2 Mh      of attention alone
    ring                  6 (p-1)/p Mh        of attention alone
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WEIGHTS = 12  # elements of the four weights, in units of h^2
READ, MADE = 7, 9  # elements that the four layers read and make, in units of M h


class LayerVolume(NamedTuple):
    """What a way to cut a layer sends: elements a rank, as `tokens` times M h and `weights` times h^2."""

    name: str
    mesh: tuple[int, ...]
    tokens: float
    weights: float
    whole_layer: bool = True  # else attention alone

    def elements(self, tokens: float, width: float) -> float:
        """Returns the elements that a rank sends, forward and backward.

        Args: `tokens` are those of the whole group's micro-batch; `width` is that of the model.
        """
        return self.tokens * tokens * width + self.weights * width**2


def volumes(ranks: int) -> list[LayerVolume]:
    """Returns every way in which so many ranks can cut a layer.

    Args: `ranks` are at least 1; 2-D needs a square, 2.5-D a square times a depth, and 3-D a cube.
    """
    p = ranks
    found = [LayerVolume("1-D", (p,), 8 * (p - 1) / p, 0.0)]
    for q, d in _squares(p):
        more = 2 * (d - 1) / (d * q**2) * WEIGHTS
        tokens, weights = 3 * (q - 1) / q**2 * READ / d, 3 * (q - 1) / q**2 * WEIGHTS + more
        found.append(
            LayerVolume("2.5-D" if d > 1 else "2-D", (d, q, q) if d > 1 else (q, q), tokens, weights)
        )
    q = _root(p, 3)
    if q > 1:
        tokens, weights = 2 * (q - 1) / q**3 * (READ + MADE), 2 * (q - 1) / q**3 * WEIGHTS
        found.append(LayerVolume("3-D", (q, q, q), tokens, weights))
        again = (q - 1) / q**3
        found.append(
            LayerVolume("3-D, gathered again", (q, q, q), tokens + again * READ, weights + again * WEIGHTS)
        )
    found.append(LayerVolume("FSDP", (p,), 0.0, 3 * WEIGHTS * (p - 1) / p))
    found.append(LayerVolume("Ulysses", (p,), 8 * (p - 1) / p**2, 0.0, whole_layer=False))
    found.append(LayerVolume("ring", (p,), 6 * (p - 1) / p, 0.0, whole_layer=False))
    return found


def _root(n: int, power: int) -> int:
    """Returns the whole root of a number; 0 where there is none."""
    root = round(n ** (1 / power))
    return root if root**power == n else 0


def _squares(p: int) -> Iterator[tuple[int, int]]:
    """Yields (q, d) of every q x q x d = p with q > 1 and d no larger than q, plain squares first."""
    for d in range(1, p + 1):
        q = _root(p // d, 2) if p % d == 0 else 0
        if q > 1 and d <= q:
            yield q, d


def least(ranks: int, tokens: float, width: float) -> LayerVolume:
    """Returns the way that sends least for a whole layer, without gathering again."""
    found = [x for x in volumes(ranks) if x.whole_layer and x.name != "3-D, gathered again"]
    return min(found, key=lambda x: x.elements(tokens, width))


def break_even(one: LayerVolume, other: LayerVolume) -> float | None:
    """Returns the tokens, in units of the width, at which two ways send the same; None where none is."""
    if one.tokens == other.tokens:
        return None
    found = (other.weights - one.weights) / (one.tokens - other.tokens)
    return found if found > 0 else None
