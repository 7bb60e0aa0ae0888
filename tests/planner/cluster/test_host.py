from __future__ import annotations

from pathlib import Path

from planner.cluster.variants import OtherLoad, Ticks, machine_ticks


def test_what_others_took_is_what_was_busy_beside_the_own_work() -> None:
    load = OtherLoad(Ticks(busy=100, all=1000))
    assert load.share(own_s=10, ticks=Ticks(busy=140, all=1100)) == 0.3
    assert load.share(own_s=50, ticks=Ticks(busy=140, all=1100)) == 0


def test_a_machine_that_does_not_tell_has_no_others(tmp_path: Path) -> None:
    silent = machine_ticks(tmp_path / "stat")
    assert OtherLoad(silent).share(own_s=1, ticks=silent) == 0


def test_waiting_for_a_disk_is_not_busy(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text("cpu  200 0 100 500 200 0 0 0 0 0\ncpu0 1 2 3\n")
    ticks = machine_ticks(path)
    assert 0 < ticks.busy == 0.3 * ticks.all
