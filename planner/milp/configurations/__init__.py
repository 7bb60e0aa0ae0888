# The configurations of a planning instance: everything discrete about a plan but its cut.
#
# In come a cluster, the batch and what the user has pinned. Out come all configurations that are possible, and where
# the ranks of each stand. Start reading in `configurations.py`.
