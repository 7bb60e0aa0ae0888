# The search for the best configuration and cut.
#
# In comes a planning instance and the effort allowed. Out comes a `SearchState`: the best answer, the bounds of all
# configurations, and the certificate. Start reading in `search.py`, which decides what is looked into when.
