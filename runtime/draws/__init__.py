"""Random numbers by key: a sample meets the same ones under every plan.

In comes a `StageModule`, whose random operations `key_random_operations` edits once, and `Keys`, which say before each
forward where in the run it stands. Start at `keyed.py`; `numbers.py` has the hash that dropout takes its numbers from.
"""

from runtime.draws.dropout import Parts
from runtime.draws.keyed import Draw, Keys, draw_of, key_random_operations, numbered, random_operations

__all__ = ["Draw", "Keys", "Parts", "draw_of", "key_random_operations", "numbered", "random_operations"]
