"""What the cost model must go on saying about the paper's experiments; the benchmark prints the rest."""

from __future__ import annotations

from benchmarks.chimera_paper import (
    ANCHOR,
    ANCHOR_SEQ_S,
    CANDIDATES,
    FIGURES,
    Network,
    bubbles,
    calibrated,
    pair_counts,
    samples_per_s,
)

NETWORK = Network()


def test_the_anchor_is_what_it_was_calibrated_to() -> None:
    assert abs(samples_per_s(ANCHOR, calibrated(NETWORK), NETWORK) - ANCHOR_SEQ_S) < 0.01


def test_bubbles_are_those_of_the_paper() -> None:
    assert all(row[-1] for row in bubbles().rows)


def test_the_best_configuration_on_32_nodes_is_the_one_measured() -> None:
    values = [samples_per_s(run, calibrated(NETWORK), NETWORK) for run in CANDIDATES]
    assert CANDIDATES[values.index(max(values))] is ANCHOR


def test_schemes_on_64_nodes_come_in_the_paper_s_order() -> None:
    bars = next(bars for figure, bars in FIGURES.items() if figure.startswith("14"))
    ours = [samples_per_s(run, calibrated(NETWORK), NETWORK) for run, _ in bars]
    assert [paper for _, paper in bars] == sorted((paper for _, paper in bars), reverse=True)
    assert ours == sorted(ours, reverse=True)


def test_the_best_number_of_pairs_lies_between_one_and_all() -> None:
    for *_, papers_best, our_best in pair_counts(NETWORK).rows:
        assert papers_best == our_best
