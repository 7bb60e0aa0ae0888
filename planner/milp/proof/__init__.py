# Proofs that no cut of a configuration is faster than a limit.
#
# In comes the cut problem of a configuration. Out come a lower bound of its step and the cuts that may still beat the
# limit (`ConfigurationProof`). Start reading in `prove.py`. `totals.py` bounds whole configurations before that,
# `hull.py` has the linear program over all cuts of one order, `order_free.py` bounds one cut in any order, and
# `branch_and_bound.py` closes what the first look leaves open.
