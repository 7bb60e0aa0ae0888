"""Every threshold of the solver, in one place: what limits the space that is searched, and what limits the work.

Tests patch them low, so that small questions cross each of them and exhaustion can check the answers. A `SearchWatch` ends a
search from outside: it is told how far the search has come, and knows of Ctrl-C.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal, get_args

from planner.errors import BadInput

EffortName = Literal["quick", "normal", "full"]

# The space: what a certificate says was left out
DEEPEST = 64  # pipeline workers at most, unless their number is pinned
# actions of a replica and step; a longer order is neither readable nor quick to simulate
MOST_ACTIONS = 1 << 17
MOST_FORWARDS = 1024  # forwards of a device up to which `overlap` is considered, unless it is pinned
FREE_CHUNKS = 2  # how many of the least numbers of chunks are tried, where a family allows any
GATHERED_LAYERS = 24  # layers up to which a gather is considered before each of them
GATHERS = 6  # places for a gather, in larger models
REGRIDDED_LAYERS = 8  # layers up to which a change of the grid is considered before each of them
REGRIDS = 4  # places for a change of the grid, in larger models
PARTED_LAYERS = 300  # layers of a model up to which stages may recompute some of theirs
FEW_REPLICAS = 8  # replicas up to which any number of them may share gradients or parameters
ORDERED_LAYERS = 24  # layers up to which all orders of the layers are searched
ORDERS = 12  # if they are no more than these
ORDER_DEPTHS = 2  # depths whose best balanced stages give an order
IDEALS = 20_000  # sets of layers that are searched for them

# The search: what is looked into, and how long; whatever is not keeps the bound of its totals
ORDERS_SHARE = 0.5  # of the work allowed, over all other orders together
EVEN_CUTS = 60  # configurations whose even cut is simulated before any is looked into
FAR = 1.4  # of the least guess: a configuration that is guessed at more is none of them
SHARED_GUESSES = 1000  # configurations whose sharded variant is guessed at beside them
ALIKE_GUESSES = 0.05  # share by which guesses are taken for equal, so that cheaper orders come first
FIRST_ANSWERS = 12  # of them that are answered
POLISHED = 6  # answers that are polished once more before any is proved
SPARED = (
    24  # configurations of which variants with less memory are answered, where their even cuts do not fit
)
USES = 12  # ways to use the devices, of each of which a configuration of each family is among them
SPARED_WORK = 0.1  # of the work allowed is for that
SOLVED_USES = 3  # of the best ways to use the devices, all variants are looked into first where memory binds
SOLVED_WORK = 0.05  # of the work allowed is for each of them
HOPE = 1.2  # of the best answer so far: an even cut that takes more is not descended from
GLANCES = 0.1  # of the work allowed is for those even cuts
LOOKS = 0.85  # of the work allowed is spent by the end of first looks
STALE = 0.1  # of it without a better plan is enough, where no look can move the bound
# In the usual work; ten times as many where ten times the work is allowed
CROWD = 250  # open cuts with silent neighbours below all else: more are not looked at, and their bound stays
BARE_PARTS = 4  # boundaries with silent neighbours, up to which variants are bounded together
UNMOVED = 16  # looks at cuts with silent neighbours that move no bound: then the bound stays
STAGEWISE_CELLS = 2_000_000  # stages times pairs of boundaries, up to which cuts are bounded stage by stage
STAGEWISE_NEAR = 0.02  # of what is asked: how close such a bound comes to what it could be
NEAR = 0.047  # of the best answer: all bounds come so near to it before any comes nearer
NEAR_WORK = 0.9  # as much as this share of the work allowed, besides, is for that
WORK_NS = 40e9  # of `WorkMeter`
PROPOSALS = 1000  # neighbours of an answer that annealing simulates at first
SETTLING = (
    (24, 1, 0.2),
    (8, 4, 0.2),
    (3, 16, 0.05),
)  # how many of the best answers are annealed in turn, with so many times as many, and by how much they may be slower
SOON_PROVED = 12  # configurations that may beat the first answers, up to which proofs come before annealing
RUGGED = 1e-3  # share that annealing gained at last: then the best answer is annealed for longer still
LONGEST = 64  # times as many neighbours, at most
RELISTED_SETTLED = 2  # orders listed anew that are annealed for long, where that gained before
ANNEAL_NS = 3e9  # work that annealing may do, by the meter
CHOICES = 10  # times as many boxes, and twice as many proposals, where flags are to be chosen
PLAIN = 0.75  # of the work left, at most, is for those without flags, while theirs are the lowest bounds
LAYOUTS = 4  # of each group, where layouts are looked for: the fastest and those that save most
SMALL_LAYERS = 24  # beyond so many layers cuts where some neighbours do not talk have a share of the work
SILENT = 0.05  # that share
BOXES = 100  # of one configuration at first, divided by its depth
NODES = 3000  # boxes of one configuration in a turn at most, divided by its depth
PROGRAM_NODES = 2000  # of the mixed-integer program
PROGRAM = 0.25  # as much as this share of the work allowed, behind it, is for the program
PROGRAM_ARCS = 3000  # beyond, the program is left unwritten and the bound of the tree stands alone
FILTERED_ARCS = 60_000  # beyond, arcs are not filtered for the program either: too many would be left
ALONE_NS = 7e8  # work that the proof of the best plan's configuration alone may do
PROVED_ARCS = 500  # where everything is proved already, and the program only states it
RELISTINGS = 4  # rounds in which orders of the best plans are rescheduled
ALIKE = 0.1  # orders of plans slower than the best by more than this share are not rescheduled
RELISTED_FAMILIES = 4  # families whose best plans are rescheduled, besides the best plan
RELISTED_KEPT = 4  # rescheduled orders of each plan that enter
RELISTED_ACTIONS = 4096  # actions of an order at most; rescheduling a longer one takes too long
TOGETHER = 32  # moves of a descent that are made at once at most
DESCENT_NS = 1e9  # work that one descent may do, by the meter
PICK_NS = 3e8  # work that the descent of a first answer may do
SOON = 40  # configurations that are guessed at where a search is ended before its first answer
SOON_ACTIONS = 256  # forwards of a step of those that are simulated first
LONGEST_BLOCK = 2  # boundaries that move together at most, where there are many
ROUNDS = 60  # mixtures of rows that a first look tries
HULL_STAGES = 48  # stages up to which the linear program over all cuts is written: beyond, it takes minutes
MOMENTS = 20_000_000  # rows of memory, times pairs of stages, up to which arcs are built
ARCS = 2_000_000  # arcs that windows may span, up to which they are built
KEPT_ROWS = 200_000  # rows kept of a configuration that is left open, times its pairs of stages

# Ways to the same result: what is tabled, kept or compiled
GRIDS = 100  # tables over all intervals that are kept at a time
TABLED_LAYERS = 300  # layers up to which what a single problem needs of every interval is kept
FEW_CUTS = 12  # that are simulated at once without a first pass over messages between neighbours alone
LONG_ACTIONS = 4096  # actions of an order that is compiled for one pattern of messages at a time
SLOW_ACTIONS = 2048  # actions of an order that takes longer to compile than many others to simulate
COLLECTED = 50_000, 10, 100  # thresholds of garbage collection: orders are many small objects without circles


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collects garbage seldom while it is entered: else a tenth of a search goes over objects that stay."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """How far a search has come; times are nanoseconds of a step."""

    done: int  # configurations that are decided: solved, or ruled out by a bound
    all: int  # configurations met so far
    best_ns: int | None  # None while no plan is found
    bound_ns: int | None  # no plan of the search is faster; None while that is not known
    spent: float  # share of the work allowed, between 0 and 1

    @property
    def slower(self) -> float | None:
        """Returns by what share the best plan is slower than any can be, at most; None while one of them is not known."""
        if self.best_ns is None or self.bound_ns is None:
            return None
        return max(0.0, self.best_ns / max(self.bound_ns, 1) - 1)


class SearchWatch:
    """Follows searches from outside, and ends them by Ctrl-C with the best plan so far.

    Within `stoppable` the first Ctrl-C ends what is being searched, whatever else is asked ends as soon as it begins,
    and the second Ctrl-C ends the program.
    """

    def __init__(self, tell: Callable[[SearchProgress], None] | None = None, every_s: float = 0.2) -> None:
        self.stopped = False  # by Ctrl-C
        self.answered = False  # whether a search has found a plan
        self._tell, self._every_s = tell, every_s
        self._told_s = 0.0
        self._searching = self._within = False

    def at(self, progress: Callable[[], SearchProgress]) -> None:
        """Tells how far a search is, where somebody listens and the last word was some time ago.

        Args: `progress` is asked only then.
        Raises: KeyboardInterrupt where a library has swallowed that of Ctrl-C.
        """
        if self.stopped and self._within:
            raise KeyboardInterrupt
        if self._tell is not None and time.monotonic() - self._told_s >= self._every_s:
            self._tell(progress())
            self._told_s = time.monotonic()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Tells nothing while it is entered, since what is searched is another question."""
        tell, self._tell = self._tell, None
        try:
            yield
        finally:
            self._tell = tell

    def begin(self) -> None:
        """Begins a part that Ctrl-C may end at any point.

        Raises: KeyboardInterrupt where Ctrl-C came before.
        """
        self._searching = self._within = not self.stopped
        if self.stopped:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Ends the part that Ctrl-C may end: what follows is kept whole."""
        self._searching = self._within = False

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Lets Ctrl-C end what is done while it is entered, at any point.

        Raises: KeyboardInterrupt where Ctrl-C came before.
        """
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def stoppable(
        self, *others: signal.Signals, say: Callable[[str], None] = lambda said: None
    ) -> Iterator[None]:
        """Takes Ctrl-C while it is entered; other threads than the main one never get it.

        Args: `others` are signals that end the search as Ctrl-C does; `say` takes what an answer needs to be told with
            that came of it.
        """
        self.stopped = self.answered = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, *others)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.stopped:
            say("stopped: the answer is the best so far, and its gap counts all that was not looked into")

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        again, self.stopped = self.stopped, True
        searching, self._searching = self._searching, False
        if searching or again:
            raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The work that a search may do, in counts, never in seconds: the same input gives the same plan."""

    nodes: int = NODES
    proposals: int = PROPOSALS
    program_nodes: int = PROGRAM_NODES
    work_ns: float = WORK_NS
    proves: bool = (
        True  # False ends the search with its answers; other configurations keep the bounds of totals
    )
    watch: SearchWatch = field(default_factory=SearchWatch, compare=False, repr=False)


def effort_named(name: str, watch: SearchWatch | None = None) -> Effort:
    """Returns how hard to search.

    Args: `name` is "quick" (answers, and the best configuration alone), "normal" (a bounded proof) or "full" (ten times
      the work); `watch` follows the search.
    Raises: BadInput for another name.
    """
    watch = watch or SearchWatch()
    if name == "quick":
        return Effort(proves=False, watch=watch)
    if name == "full":
        return Effort(nodes=10 * NODES, proposals=4 * PROPOSALS, work_ns=10 * WORK_NS, watch=watch)
    if name != "normal":
        raise BadInput(f"effort is '{name}'", where="--effort", allowed=", ".join(get_args(EffortName)))
    return Effort(watch=watch)
