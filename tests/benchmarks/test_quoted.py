"""Numbers quoted as measured stand in RESULTS.md, and nothing is quoted that says not from where."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import quoted
from benchmarks.__main__ import scripts

SECTIONS = {
    "fidelity": "\nerror 4.2% median, of 40 plans, 1,024 MiB, 12.5 ms\n",
    "demo": "\n| `x 9.9 ms` |\n",
}


def faults(text: str) -> list[str]:
    return [
        fault for quote in quoted.quotes(Path("page.md"), text) for fault in quoted.faults(quote, SECTIONS)
    ]


@pytest.mark.parametrize("page", quoted.pages(), ids=lambda page: page.name)
def test_every_number_quoted_as_measured_is_in_the_results(page: Path) -> None:
    known = quoted.sections(quoted.RESULTS.read_text())
    found = [f for quote in quoted.quotes(page, page.read_text()) for f in quoted.faults(quote, known)]
    assert not found, "\n".join(found)


def test_what_the_demo_prints_is_quoted_as_it_stands_in_the_results() -> None:
    section = quoted.sections(quoted.RESULTS.read_text()).get("demo")
    for copy in quoted.copies(quoted.ROOT / "README.md"):
        assert section is None or copy == quoted.printed(section), "renew it with `python -m benchmarks demo`"


def test_the_results_hold_sections_of_scripts_that_exist_and_no_others() -> None:
    assert set(quoted.sections(quoted.RESULTS.read_text())) <= set(scripts())


def test_numbers_with_a_point_or_a_unit_are_found_and_names_dates_and_code_are_not() -> None:
    text = "In 4.2 % of 40 plans, 12.5 ms, 1,024 MiB; since 2026-11-20 with `--micro 8.5`, [v1.2](a.b/3.5 s) on 8 ranks"
    assert quoted.numbers(text) == ("4.2", "12.5", "1,024")


def test_a_quoted_number_that_the_section_has_passes_and_another_does_not() -> None:
    assert faults("It came to 4.2 % (median). <!-- from: fidelity -->") == []
    assert faults("It came to 3.9 % (median). <!-- from: fidelity -->") == [
        "page.md:1 quotes 3.9, which is not in fidelity of RESULTS.md"
    ]
    assert faults("It came to 2.5 ms. <!-- from: fidelity -->")  # 12.5 is another number


def test_a_section_that_is_not_there_is_named() -> None:
    assert faults("It came to 4.2 %. <!-- from: tempo -->")[0].endswith(
        "quotes 'tempo', which RESULTS.md does not have"
    )


def test_a_measured_number_without_its_section_is_refused() -> None:
    assert "names no section" in faults("We measured 4.2 % here.")[0]
    assert faults("A link of 12.5 GB is assumed.") == []


def test_blocks_below_a_mark_are_held_to_it() -> None:
    block = "<!-- from: fidelity -->\n```text\nratio 1.07\n\nstep 12.5 ms\n```\nand so on"
    assert faults(block) == ["page.md:1 quotes 1.07, which is not in fidelity of RESULTS.md"]


def test_what_runs_as_a_benchmark_is_one() -> None:
    for name in scripts():
        text = (quoted.ROOT / "benchmarks" / f"{name}.py").read_text()
        assert "def run(quick: bool) -> Result:" in text and "main(run)" in text, name
