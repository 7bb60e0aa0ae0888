"""Gives a number of a result the same bits, whatever numbers are computed beside it.

    with SameBits():
        y = module(x)

Libraries take other code for other sizes, and for the last numbers of a tensor. So the numbers of a part would differ, in
their last bits, from those of the whole. `SameBits` has every operation done in blocks of one size, wherever size or
place could matter: `products.py` has products and convolutions, `places.py` functions and sums.
"""

from runtime.same_bits.mode import SameBits
from runtime.same_bits.places import threads
from runtime.same_bits.products import Plain

__all__ = ["Plain", "SameBits", "threads"]
