"""Docstrings are sentences, and public ones say what comes in and out: counted over the product.

`python -m tests.prose [paths]` lists the lines to mend. The counters are tested below on small sources.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose
from tests.sentences import first_sentence, is_fragment

MOST_FRAGMENTS = 0.02
LEAST_IN_AND_OUT = 0.60


@pytest.fixture(scope="module")
def product() -> list[prose.Docstring]:
    return prose.read([prose.ROOT / name for name in prose.PRODUCT])


def test_docstrings_begin_with_a_sentence(product: list[prose.Docstring]) -> None:
    assert prose.count(product).fragment_share <= MOST_FRAGMENTS, f"\n{prose.table(product)}"


def test_public_functions_say_what_comes_in_and_out(product: list[prose.Docstring]) -> None:
    assert prose.count(product).in_and_out_share >= LEAST_IN_AND_OUT, f"\n{prose.table(product)}"


# The counters


@pytest.mark.parametrize(
    "text",
    [
        "Returns the bytes of a stage.",
        "Return the predicted peak of the fullest device in bytes, without the margin.",
        "Continue branch and bound for at most `nodes` boxes and `work_ns` of work.",
        "Remembers the first SIGINT or SIGTERM.",
        "Sums the gradients of a bucket.",
        "Runs in a process of its own.",
        "Waits for the nodes, as srun does; `words` are further options of srun.",
        "Quantises the weights of a layer.",
        "Groups layers by module path.",
        "Re-raises the first error.",
        "Fails.",
        "Checks if a plan fits.",
        "Return True if a plan fits.",
        "Split segments in two.",
        "`device` is where tensors are.",
        "A rank that updates nothing takes part in the sums all the same.",
        "Where nothing fits, every family is asked by name.",
        "Two runs in one folder would overwrite each other.",
        "Boxes of one lane never overlap.",
    ],
)
def test_a_sentence_is_no_fragment(text: str) -> None:
    assert not is_fragment(text, of_function=True)


@pytest.mark.parametrize(
    "text",
    [
        "Bytes of a stage.",
        "The bytes of a stage.",
        "The bytes a stage takes.",
        "Rows that must travel.",
        "The rank that has most to do, where another one was profiled.",
        "From a shape to the problem that its cut poses.",
        "What no cut of a box can beat: rows of path counts.",
        "Of one worker.",
        "The same for all.",
        "So many boxes further, from windows as narrow as the limit makes them by now.",
        "As `solve`, without the reasons: None where nothing fits.",
        "Whether every layer hangs on the one before it.",
        "None where the layer has no rule, or nothing of it is cut.",
        "[cut, worker]: of activations.",
        "Names of the stages.",
        "One cell a rank.",
        "By stage.",
    ],
)
def test_a_phrase_without_a_verb_is_a_fragment_for_a_function(text: str) -> None:
    assert is_fragment(text, of_function=True)


@pytest.mark.parametrize(
    "text",
    [
        "One planning instance: profile, cluster, batch and pins.",
        "A process that measures and may die.",
        "Lower bounds for a box of cuts.",
        "Finds the supervisor process of a local run from its run folder.",
        "When the deadline passes, the supervisor stops the rank.",
    ],
)
def test_a_class_or_module_may_begin_with_what_it_is(text: str) -> None:
    assert not is_fragment(text, of_function=False)


@pytest.mark.parametrize(
    "text",
    [
        "From a shape to the problem that its cut poses, and what no order of its actions could beat.",
        "What no cut of a box can beat: rows of path counts.",
        "Of the fullest device, its margin aside.",
        "The same training on more devices.",
        "How many times as long products take.",
        "Which samples a step is made of.",
        "Where gradients leave a stage.",
    ],
)
def test_an_opener_that_points_elsewhere_is_a_fragment_for_a_class_or_module(text: str) -> None:
    assert is_fragment(text, of_function=False)


def test_the_first_sentence_ends_with_its_period_or_its_paragraph() -> None:
    assert first_sentence("Writes a file, e.g. a plan.\nThen more.") == "Writes a file, e.g. a plan."
    assert first_sentence("Writes\na file\n\nThen more.") == "Writes a file"


SOURCE = '''"""A module of two functions."""

class Public:
    """A class."""

    def inside(self, x):
        """Returns one."""
        def deeper():
            """Of no account."""

    @property
    def size(self):
        """Returns the size."""

    def _private(self):
        """The same."""

    def __len__(self):
        """Returns the length."""

class _Private:
    def method(self):
        """Of a private class."""

def with_sections(x):
    """Writes x.

    Args:
        x: A number.
    """

def with_example(x):
    """Writes x.

    >>> with_example(1)
    """

def undocumented(x): ...

@overload
def with_overloads(x):
    """Writes x.

    Returns: x.
    """
'''


def of_source() -> list[prose.Docstring]:
    return list(prose.docstrings(Path("planner/a/b.py"), SOURCE))


def test_every_docstring_is_counted_where_it_stands() -> None:
    found = {each.name: each.line for each in of_source()}
    assert len(found) == 11
    assert found["b"] == 1
    assert found["Public.inside"] == 7
    assert found["Public.inside.deeper"] == 9


def test_functions_are_public_where_no_part_of_their_name_is_private() -> None:
    public = [each.name for each in of_source() if each.public]
    assert public == ["Public.inside", "Public.size", "with_sections", "with_example"]


def test_sections_examples_and_results_of_no_arguments_say_what_comes_in_and_out() -> None:
    said = [each.name for each in of_source() if each.public and each.says_in_and_out]
    assert said == ["Public.size", "with_sections", "with_example"]


def test_the_counts_are_shares_of_docstrings_and_of_public_ones() -> None:
    counted = prose.count(of_source())
    assert counted == prose.Count(docstrings=11, fragments=3, public=4, in_and_out=3)
    assert counted.fragment_share == 3 / 11
    assert counted.in_and_out_share == 3 / 4


def test_the_limits_can_be_broken() -> None:
    bad = list(prose.docstrings(Path("a.py"), 'def f(x):\n    """Of x."""\n'))
    assert prose.count(bad).fragment_share > MOST_FRAGMENTS
    assert prose.count(bad).in_and_out_share < LEAST_IN_AND_OUT


def test_lines_to_mend_name_file_line_and_fault() -> None:
    bad = prose.docstrings(Path("planner/a/b.py"), 'def f(x):\n    """Of x. More."""\n')
    assert list(prose.faults(bad)) == ["planner/a/b.py:2 f: fragment and no in and out: Of x."]


def test_the_table_has_a_line_for_each_package() -> None:
    lines = prose.table(of_source()).splitlines()
    assert [line.split()[0] for line in lines] == ["package", "planner/a", "all"]


def test_the_command_counts_the_files_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text('"""Of one worker."""\n')
    assert prose.main([str(tmp_path)]) == 0
    assert f"{tmp_path}/a.py:1 a: fragment: Of one worker." in capsys.readouterr().out
