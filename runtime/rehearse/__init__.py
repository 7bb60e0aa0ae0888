"""Each distinct rank runs alone on one device."""

from runtime.rehearse.rehearse import rehearse
from runtime.rehearse.report import Rehearsal, as_dict, text

__all__ = [
    "Rehearsal",
    "as_dict",
    "rehearse",
    "text",
]
