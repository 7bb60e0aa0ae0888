"""Who holds a parameter, and when its gradient is summed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import nn

from planner.schedule import Overlap
from runtime.update import Bucket, Flat, GradientSync, buckets_of, groups_of
from runtime.update.flats import share_of
from runtime.world import RankMesh
from tests.captures import captured_of
from tests.runtime.plans import plan_for
from tests.runtime.test_equality import HERE


def mesh_and_buckets(**shape: object) -> tuple[RankMesh, tuple[Bucket, ...]]:
    from runtime.messages import stages_of_layers
    from runtime.update import trained

    _, captured = captured_of(HERE + "branches.py", {"double": "False"}, 2)
    plan = plan_for(captured.graph, HERE + "branches.py", **shape)  # type: ignore[arg-type]
    mesh = RankMesh.of(plan)
    return mesh, buckets_of(captured.graph, stages_of_layers(plan, captured.graph), mesh, trained(captured))


def test_a_tied_weight_is_held_by_both_its_stages() -> None:
    _, buckets = mesh_and_buckets(workers=3, micros=3)
    tied = next(b for b in buckets if "embedding.weight" in b.names)
    assert tied.stages == (0, 2) and tied.ranks == (0, 2) and tied.names == ("embedding.weight",)


def test_replicas_and_both_pipes_of_a_pair_hold_a_stage() -> None:
    _, replicas = mesh_and_buckets(workers=2, micros=2, data=2)
    assert {b.stages: b.ranks for b in replicas}[(0,)] == (0, 2)
    mesh, pairs = mesh_and_buckets(family="chimera", workers=4, micros=4)
    assert {b.stages: b.ranks for b in pairs}[(0,)] == (0, 3)
    assert mesh.held(0) == ((0, 0), (1, 3)) and mesh.peers(2) == (0, 1, 2, 3)


def test_frozen_unused_and_unreached_parameters_are_in_no_bucket() -> None:
    _, buckets = mesh_and_buckets(workers=2, micros=2)
    names = {name for bucket in buckets for name in bucket.names}
    assert not names & {"frozen.weight", "frozen.bias", "unused.weight", "gate.weight", "gate.bias"}
    assert "mix.weight" in names


def flat(nodes: list[tuple[int, int]], ranks: tuple[int, ...] = (0,)) -> Flat:
    parameters = {name: nn.Parameter(torch.full((4,), float(i))) for i, name in enumerate("abc")}
    return Flat(Bucket((0, 1), ranks, "float32", tuple("abc")), parameters, nodes)


def test_parameters_and_gradients_are_views_of_one_buffer_each() -> None:
    made = flat([(0, 0)])
    made.grads.fill_(2)
    made.values.add_(1)
    assert all(p.grad is not None and p.grad.tolist() == [2.0] * 4 for p in made.parameters.values())
    assert [float(p.detach()[0]) for p in made.parameters.values()] == [1.0, 2.0, 3.0]


def test_a_bucket_waits_for_the_last_of_its_stages_on_the_rank() -> None:
    made = flat([(0, 0), (0, 1)])
    sync = GradientSync([made], {})
    sync.begin()
    sync.launch((0, 0))
    with pytest.raises(AssertionError, match="an update before the sum"):
        sync.wait([made])
    assert sync.due((0, 0)) == []
    sync.launch((0, 1))
    assert sync.due((0, 0)) == sync.due((0, 1)) == sync.left() == [made]
    sync.updated(made)
    assert sync.due((0, 1)) == sync.left() == []


def test_gradients_of_a_step_that_were_not_applied_are_kept_until_they_are() -> None:
    made = flat([(0, 0)])
    sync = GradientSync([made], {})
    sync.begin()
    assert sync.due((0, 0)) == []
    made.grads.fill_(3)
    sync.launch((0, 0))
    sync.begin()
    assert sync.due((0, 0)) == [made] and bool((made.grads == 3).all())
    sync.updated(made)
    assert sync.due((0, 0)) == [] and not made.grads.any()
    sync.launch((0, 0))
    assert sync.due((0, 0)) == [made]


def test_replicas_of_one_worker_share_a_communicator_and_others_have_their_own() -> None:
    mesh, buckets = mesh_and_buckets(workers=2, micros=2, data=2, overlap=Overlap(parts=2))
    made: list[tuple[int, ...]] = []

    def new_group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
        made.append(tuple(ranks))
        return Named(len(made)) if 0 in ranks else None  # type: ignore[return-value]

    groups = groups_of(buckets, mesh, 0, new_group)
    assert sorted(made) == [(0, 1, 2, 3), (0, 2), (1, 3)]
    own = {groups[b] for b in buckets if b.ranks == (0, 2)}
    assert len([b for b in buckets if b.ranks == (0, 2)]) > 1 and len(own) == 1


class Named(int):
    """Stands for a communicator."""


def test_a_step_begins_with_gradients_of_zero_in_the_same_memory() -> None:
    made = flat([(0, 0)])
    before = {name: p.grad for name, p in made.parameters.items()}
    made.grads.fill_(3)
    GradientSync([made], {}).begin()
    assert all(p.grad is before[name] and not p.grad.any() for name, p in made.parameters.items())


def test_sharded_state_gives_every_parameter_to_one_holder() -> None:
    made = flat([(0, 0)], ranks=(0, 4, 7))
    shares = {rank: share_of(made, rank, True) for rank in (0, 4, 7)}
    assert sorted(name for share in shares.values() for name in share.names) == ["a", "b", "c"]
    ranges = shares[0].ranges
    assert ranges == shares[4].ranges == shares[7].ranges
    assert [ranges[0][1], *(end for _, _, end in ranges)] == [0, 4, 8, 12]
    assert share_of(made, 4, False).names == ("a", "b", "c")
