# Other orders of the layers, for models that are no chain.
#
# In comes a planning instance. Out comes the search with the best plan over the orders that were searched, and what its
# proof covers. Start reading in `orders.py`; `lattice.py` finds balanced stages, whose orders are worth a search.
