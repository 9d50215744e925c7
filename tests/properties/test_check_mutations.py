"""What is broken on purpose, the judge rejects, and for the reason that it was broken for."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings

from tests.properties.mutations import MUTATIONS, SEEDS, Case, is_broken_and_seen
from tests.strategies import problems
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, Overlap, Profile


@settings(max_examples=800, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_every_mutation_is_rejected(problem, seed):
    case = Case(problem, seed)
    for mutation in case.rng.sample(MUTATIONS, 10):
        is_broken_and_seen(mutation, case)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_finds_something_to_break(mutation):
    profile = Profile.uniform(
        4, forward_ns=3, backward_input_ns=2, backward_weight_ns=1, latency_ns=1, activation_bytes=5
    )
    seen = 0
    for placement in (Placement.linear(4), Placement.looped(2, 2), Placement.v(2), Placement.bidirectional(4)):
        problem = Problem(profile=profile, placement=placement, microbatches=4)
        ending = dataclasses.replace(profile.stages[0], grad_reduce_ns=4, optimizer_ns=2)
        ends = dataclasses.replace(profile, stages=(ending,) * 4)
        again = {"allow": frozenset({"split", "fused", "recompute"})}
        host = dataclasses.replace(profile, host_link=HostLink(latency_ns=2))
        away = {"allow": frozenset({"split", "fused", "offload"}), "profile": host}
        pairs = itertools.product(range(4), repeat=2)
        overlaps = tuple(Overlap(forward_stage=f, backward_stage=b, forward_backward_overlap_ns=4) for f, b in pairs)
        beside = {
            "allow": frozenset({"split", "fused", "paired"}),
            "profile": dataclasses.replace(profile, overlaps=overlaps),
        }
        variants = {"forward_only": True}, {"profile": ends}, again, away, beside, {}
        for variant in (dataclasses.replace(problem, **changes) for changes in variants):
            seen += sum(is_broken_and_seen(mutation, Case(variant, seed)) for seed in range(12))
    assert seen >= 16
