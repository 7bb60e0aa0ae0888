"""What travels between stages, and when it is gone."""

from runtime.messages.releases import releases_after, releases_before
from runtime.messages.routes import (
    Direction,
    Names,
    Routes,
    check_hops,
    in_order_of,
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
