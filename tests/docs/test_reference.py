"""The reference pages say what the code says."""

from __future__ import annotations

import pytest

from docs.reference.generate import HERE, pages

PAGES = pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_makes_of_it(name: str) -> None:
    assert (HERE / name).read_text(encoding="utf-8") == PAGES[name], "renew it with `make docs`"


def test_every_reference_page_is_made() -> None:
    assert {path.name for path in HERE.glob("*.md")} == set(PAGES)
