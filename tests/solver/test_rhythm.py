import random
import time
from dataclasses import replace

import pytest

from tests.oracle import tiny_problem
from tests.solver.instances import instance, unequal
from zbsolve.bounds import smallest_limits
from zbsolve.check import violations
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.network import order_of
from zbsolve.solver.rhythm import find_rhythm, read_beat, sizes_worth, unroll
from zbsolve.solver.running import run
from zbsolve.solver.tasks import Length, Repeat


def rhythm_of(case, fused, size, most, work=0.2):
    """The best rhythm found in a fixed amount of work, in units, and its beat."""
    beat = read_beat(case.arrays, fused)
    found = []
    find_rhythm(beat, size, most=most, seconds=60, deterministic=work, seed=1, on_rhythm=found.append)
    return beat, found


def cheaply_fused(case):
    """Fused where that takes less time."""
    return case.forms.flags(lambda s, j: s in case.forms.cheap)


@pytest.mark.parametrize("block", range(4))
def test_an_unrolled_rhythm_is_an_order_that_fits(block):
    """Whatever is degenerate: operations without time, W that keeps nothing or more than F holds, one rank."""
    unrolled = 0
    for seed in range(60 * block, 60 * (block + 1)):
        rng = random.Random(seed)
        problem = tiny_problem(rng, rng.choice([None, 0, 1, 2, 4]), sizes=((1, 5), (2, 4), (3, 5)))
        least = smallest_limits(problem)
        if any(given is not None and given < need for given, need in zip(problem.limit_bytes, least, strict=True)):
            continue
        case = Case(problem, plain())
        fused = cheaply_fused(case)
        beat, found = rhythm_of(case, fused, rng.choice((1, 2, 3)), most=400)
        for rhythm in found[-1:]:
            timed = case.read_open(unroll(rhythm, beat, problem.microbatches), fused)
            assert timed is not None, seed
            order = order_of(problem, timed.sequence.tolist(), timed.fused.tolist())
            assert not violations(problem, order), seed
            unrolled += 1
    assert unrolled > 20


def test_unequal_distances_suit_tight_memory_better():
    case = Case(instance("paper-6.2B-p8-m64", "0.75x"), plain())
    split = [0] * case.nodes
    lengths = {}
    for size in (1, 2):
        beat, found = rhythm_of(case, split, size, most=3 * size * 200)
        lengths[size] = found[-1].length / size * beat.unit_ns
    assert lengths[1] > 117_000_000
    assert lengths[2] < 90_000_000


def test_the_task_hands_out_what_it_finds_the_same_each_time():
    problem = unequal(microbatches=20, memory_limit="0.8x")
    case = Case(problem, plain())
    task = Repeat(size=2, value_ns=1_000, target_ns=0, length=Length(steps=20_000), seed=5)
    first, again = [], []
    for heard in (first, again):
        run(task, case, time.perf_counter() + 60, heard.append)
    assert first
    assert [f.value_ns for f in first] == [f.value_ns for f in again]
    for found in first:
        order = order_of(problem, found.sequence.tolist(), found.fused.tolist())
        assert not violations(problem, order)


def test_where_a_rhythm_is_of_no_use_none_is_asked_for():
    assert sizes_worth(unequal(microbatches=20))
    assert not sizes_worth(unequal(microbatches=4))
    assert not sizes_worth(unequal(microbatches=20, forward_only=True))
    assert all(size % 2 == 0 for size in sizes_worth(several(Placement.bidirectional(3), 20)))
    differing = unequal(microbatches=20, microbatch_factors=tuple(1 + j % 2 for j in range(20)))
    assert not sizes_worth(differing)
    assert read_beat(Case(differing, plain()).arrays, [0] * 180) is None


def several(placement, microbatches, memory_limit="0.8x"):
    """Unequal stages on any placement."""
    stages = tuple(
        StageCost(
            forward_ns=10 + s % 3,
            backward_input_ns=11 + s % 2,
            backward_weight_ns=7 + s % 4,
            activation_bytes=4,
            backward_weight_bytes=2 + s % 2 * 3,
        )
        for s in range(placement.stages)
    )
    profile = Profile(stages=stages, link=Link(latency_ns=2))
    return Problem(profile=profile, placement=placement, microbatches=microbatches, memory_limit=memory_limit)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    "placement",
    [
        Placement.v(3),
        Placement.looped(2, 3),
        Placement.wave(2, 4),
        Placement.bidirectional(3),
        Placement.custom([0, 1, 0]),
    ],
    ids=lambda placement: placement.name,
)
def test_stages_that_share_a_rank_share_its_memory(placement, fuse):
    unrolled = 0
    for memory in ("0.8x", "1.1x"):
        problem = several(placement, 8, memory)
        case = Case(problem, plain())
        fused = case.forms.flags(lambda s, j: fuse)
        for size in (1, 2):
            beat = read_beat(case.arrays, fused)
            found = []
            find_rhythm(
                beat,
                size,
                most=1200,
                seconds=60,
                deterministic=0.05 if size > 1 else 0.4,
                seed=1,
                on_rhythm=found.append,
            )
            for rhythm in found[:1] + found[-1:]:
                timed = case.read_open(unroll(rhythm, beat, problem.microbatches), fused)
                assert timed is not None
                assert not violations(problem, order_of(problem, timed.sequence.tolist(), timed.fused.tolist()))
                unrolled += 1
    assert unrolled >= 1


def test_unequal_distances_suit_tight_memory_on_a_v_too():
    problem = several(Placement.v(4), 12, "0.5x")
    problem = replace(
        problem,
        profile=Profile.uniform(
            8, forward_ns=20, backward_input_ns=19, backward_weight_ns=10, activation_bytes=2, backward_weight_bytes=1
        ),
    )
    case = Case(problem, plain())
    paces = {}
    for size in (1, 2):
        beat = read_beat(case.arrays, [0] * case.nodes)
        found = []
        most = 3 * beat.work(size) // 2
        find_rhythm(beat, size, most=most, seconds=60, deterministic=1.0, seed=1, on_rhythm=found.append)
        paces[size] = found[-1].length * beat.unit_ns / size
    assert paces[2] < paces[1]
