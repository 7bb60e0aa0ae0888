"""The messages between stages: what they carry, how they travel, and when their memory can go.

In comes the captured graph with the stage of each layer; out come tensors by the names of their Values.
Start at `routes.py` (what each message carries, and when it has arrived), then `transport.py` (sends and receives).
"""

from runtime.messages.routes import (
    Direction,
    Names,
    Routes,
    check_hops,
    in_order_of,
    releases_after,
    releases_before,
    routes_of,
    stages_of_layers,
)
from runtime.messages.transport import DenseLayout, Edge, Transport

__all__ = [
    "DenseLayout",
    "Direction",
    "Edge",
    "Names",
    "Routes",
    "Transport",
    "check_hops",
    "in_order_of",
    "releases_after",
    "releases_before",
    "routes_of",
    "stages_of_layers",
]
