"""Profiles of one model on several types of devices, as one profile: its rows are the least of all types.

In: profiles of the same model, and the devices of a cluster. Out: one `Profile` whose `types` are those that count. The
solver prices each stage by the type of its devices, and bounds by the least.
All is in `together.py`.
"""

from planner.device_types.together import together

__all__ = ["together"]
