"""Forwards that keep a checkpoint alone and are computed again, from the model to the solver."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import merges, value_within_limits
from tests.strategies import problems, random_order
from zbsolve.analysis.jitter import spreads
from zbsolve.analysis.robust import solve_robust
from zbsolve.bounds import lower_bounds, smallest_limits
from zbsolve.bounds.costs import read_costs
from zbsolve.bounds.single import single_ranks
from zbsolve.catalog import baseline
from zbsolve.check import peaks, violations
from zbsolve.draw.terminal import gantt
from zbsolve.errors import Infeasible, InvalidInput, OrderError, ProblemError, ProfileError, ScheduleConditionError
from zbsolve.files import read_profile_bytes, read_timetable_bytes, timetable_bytes
from zbsolve.files.profile import profile_bytes
from zbsolve.interop.torch import write_torch_csv
from zbsolve.lowering import lower, verify
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, Link, Profile, StageCost, StageSpread
from zbsolve.simulate import simulate
from zbsolve.solution import recomputed
from zbsolve.solver import solve
from zbsolve.solver.again import choices, folded, thinned, unfolded
from zbsolve.solver.certificate import verify_bound
from zbsolve.timetable import Order

ALLOW = frozenset({"split", "fused", "recompute"})
KINDS = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
    "D": Kind.BACKWARD,
    "C": Kind.RECOMPUTE,
}


def asked(ranks=2, microbatches=2, **changes) -> Problem:
    profile = Profile.uniform(
        ranks,
        forward_ns=4,
        backward_input_ns=5,
        backward_weight_ns=6,
        activation_bytes=10,
        backward_weight_bytes=6,
        workspace_bytes=1,
        static_bytes=100,
        recompute_ns=3,
        checkpoint_bytes=2,
    )
    given = {"placement": Placement.linear(ranks), "microbatches": microbatches, "allow": ALLOW, **changes}
    return Problem(profile=profile, **given)


def order_of(*rows: str) -> Order:
    """Of words such as F0, one row a rank; stage s on rank s."""
    return Order(
        tuple(tuple(Op(KINDS[word[0]], stage, int(word[1:])) for word in row.split()) for stage, row in enumerate(rows))
    )


def value_of(problem: Problem, order: Order) -> int:
    timetable = simulate(problem, order)
    return timetable.period_ns if problem.objective == "period" else timetable.makespan_ns


def test_a_forward_holds_its_checkpoint_until_it_is_computed_again():
    problem = asked(1, 2)
    timetable = simulate(problem, order_of("F0 F1 D1 C0 D0"))
    assert [t.end_ns - t.start_ns for t in timetable.rows[0]] == [4, 4, 11, 3, 11]
    # checkpoint of 0, all of 1 beside it, then all of 0 once it is computed again; workspace throughout
    assert metrics(timetable).peak_bytes == peaks(problem, timetable) == (100 + 2 + 10 + 1,)
    assert metrics(simulate(problem, order_of("F0 F1 D1 D0"))).peak_bytes == (100 + 20 + 1,)
    assert violations(problem, timetable, claimed_ns=33) == ()


def test_it_takes_as_long_as_a_forward_and_saves_nothing_unless_the_profile_says_so():
    cost = StageCost(forward_ns=4, backward_input_ns=1, backward_weight_ns=1, activation_bytes=7)
    assert (cost.recomputing_ns, cost.checkpoint) == (4, 7)
    with pytest.raises(ProfileError, match="checkpoint_bytes are 8, more than the 7"):
        replace(cost, checkpoint_bytes=8)
    problem = asked(rank_factors=(2, 1), microbatch_factors=(1, "0.5"))
    assert (problem.cost(0, 1).recomputing_ns, problem.cost(0, 1).checkpoint) == (3, 1)
    assert (problem.cost(0, 0).recomputing_ns, problem.cost(1, 0).checkpoint) == (6, 2)


def test_fingerprint_and_files_say_what_is_chosen_and_nothing_else():
    problem = asked()
    plain = replace(problem, allow=ALLOW - {"recompute"})
    assert problem.digest != plain.digest
    bare = tuple(replace(c, recompute_ns=None, checkpoint_bytes=None) for c in problem.profile.stages)
    old = replace(plain, profile=replace(problem.profile, stages=bare))
    assert b"recompute" not in timetable_bytes(simulate(old, baseline("1f1b", old)))
    timetable = simulate(problem, baseline("gpipe-recompute", problem))
    content = timetable_bytes(timetable)
    assert b'["recompute", 0, 0, ' in content
    assert read_timetable_bytes(content, "t.json") == timetable
    free = replace(problem.profile.stages[0], recompute_ns=0, checkpoint_bytes=0)
    profile = Profile(stages=(free, *bare))
    assert read_profile_bytes(profile_bytes(profile), "p.json") == profile


def test_fingerprints_of_problems_without_it_are_those_of_the_first_release():
    profile = Profile.uniform(2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=2)
    problem = Problem(profile=profile, placement=Placement.linear(2), microbatches=4)
    assert problem.digest == "80323a4a1e05ce5c"


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        (("F0 C0 C0 D0", "F0 D0"), "at most once, but is done 2 times", "duplicate"),
        (("C0 F0 D0", "F0 D0"), "can never finish", "precedence"),
        (("F0 D0 C0", "F0 D0"), "can never finish", "precedence"),
        (("F0 B0 C0 W0", "F0 D0"), "can never finish", "precedence"),
        (("F0 C1 D0", "F0 D0"), "not an operation of this problem", "unknown"),
    ],
)
def test_what_is_wrong_is_seen_by_graph_and_judge(rows, said, code):
    problem = asked(microbatches=1)
    with pytest.raises(OrderError, match=said):
        simulate(problem, order_of(*rows))
    assert code in {v.code for v in violations(problem, order_of(*rows))}


def test_it_has_to_be_allowed():
    problem = replace(asked(microbatches=1), allow=frozenset({"fused"}))
    order = order_of("F0 C0 D0", "F0 D0")
    (found,) = violations(problem, simulate(problem, order))
    assert found.code == "not_allowed"
    assert "recompute" in found.message
    with pytest.raises(ProblemError, match="at least one of fused and split"):
        replace(problem, allow=frozenset({"recompute"}))
    with pytest.raises(ScheduleConditionError, match="--recompute"):
        baseline("gpipe-recompute", problem)


def test_gpipe_computes_all_but_the_last_microbatch_again():
    problem = asked(3, 4)
    order = baseline("gpipe-recompute", problem)
    assert recomputed(order) == {0: 3, 1: 3, 2: 3}
    assert str(order.rows[0][4]) == "C0 of stage 0"
    timetable = simulate(problem, order)
    assert violations(problem, timetable) == ()
    # three checkpoints beside the last microbatch; at the end of all forwards the first is there again
    assert metrics(timetable).peak_bytes == (100 + 3 * 2 + 10 + 8 + 1,) * 3
    assert all(
        a >= 3 * 10 for a in (p - 100 for p in metrics(simulate(problem, baseline("gpipe", problem))).peak_bytes)
    )


@settings(max_examples=80, deadline=None)
@given(problem=problems(recompute=True, most_microbatches=4), seed=st.integers(0, 2**32))
def test_no_order_beats_a_bound_or_the_smallest_limit_and_what_is_lowered_never_hangs(problem, seed):
    order = random_order(problem, seed)
    timetable = simulate(problem, order)
    found = metrics(timetable).peak_bytes
    assert peaks(problem, timetable) == found
    limited = replace(problem, memory_limit=found)
    assert violations(limited, simulate(limited, order)) == ()
    assert max(bound.value_ns for bound in lower_bounds(limited)) <= value_of(limited, order)
    assert all(least <= peak for least, peak in zip(smallest_limits(problem), found, strict=True))
    verify(lower(timetable))


@settings(max_examples=40, deadline=None)
@given(problem=problems(recompute=True, most_microbatches=3))
def test_the_smallest_limit_is_reached_by_one_microbatch_at_a_time(problem):
    order = baseline("naive", replace(problem, allow=frozenset({"fused"})))
    again = unfolded(order, frozenset(range(problem.placement.stages)))
    assert metrics(simulate(problem, again)).peak_bytes == smallest_limits(problem)


@settings(max_examples=60, deadline=None)
@given(problem=problems(recompute=True), seed=st.integers(0, 2**32), chosen=st.sets(st.integers(0, 11)))
def test_a_folded_order_is_no_slower_and_no_larger_once_it_is_unfolded(problem, seed, chosen):
    chosen = frozenset(stage for stage in chosen if stage < problem.placement.stages)
    reading = (Kind.BACKWARD, Kind.BACKWARD_INPUT)[seed % 2]
    inner = folded(problem, chosen, reading)
    order = random_order(inner, seed, fused=0.3 if reading is Kind.BACKWARD else 0.0)
    out = unfolded(order, chosen)
    before, after = metrics(simulate(inner, order)), metrics(simulate(problem, out))
    if problem.rank_factors is None and problem.microbatch_factors is None:
        assert value_of(problem, out) <= value_of(inner, order)
    # what comes back with a backward is workspace of the folded forward, too, which never needs more than the backward
    assert all(a <= b for a, b in zip(after.peak_bytes, before.peak_bytes, strict=True))
    limited = replace(problem, memory_limit=after.peak_bytes)
    thin = thinned(limited, out)
    assert value_of(limited, thin) <= value_of(limited, out)
    assert violations(limited, simulate(limited, thin)) == ()


def every_row(microbatches: int) -> list[str]:
    """All rows of a stage: any backwards, anything computed again, microbatches first in, first out."""
    rows = set()
    for ways in itertools.product(("F D", "F B W", "F C D", "F C B W"), repeat=microbatches):
        chains = [[f"{letter}{j}" for letter in way.split()] for j, way in enumerate(ways)]
        rows |= {" ".join(row) for row in merges(chains)}
    return [row for row in sorted(rows) if _in_turn(row)]


def _in_turn(row: str) -> bool:
    words = row.split()
    forwards = [w[1:] for w in words if w[0] == "F"]
    backwards = [w[1:] for w in words if w[0] in "BD"]
    return forwards == sorted(forwards) and backwards == sorted(backwards)


def test_bounds_hold_and_the_solver_comes_close_to_the_best_of_all_orders():
    rng = random.Random(4)
    rows = every_row(2)
    gaps = []
    for case in range(5):
        stages = tuple(
            StageCost(
                forward_ns=rng.randint(1, 4),
                backward_input_ns=rng.randint(1, 4),
                backward_weight_ns=rng.randint(0, 4),
                activation_bytes=8,
                backward_weight_bytes=rng.randint(0, 9),
                checkpoint_bytes=rng.randint(0, 4),
                recompute_ns=rng.randint(0, 4),
            )
            for _ in range(2)
        )
        problem = Problem(
            profile=Profile(stages=stages, link=Link(latency_ns=rng.randint(0, 2))),
            placement=Placement.linear(2),
            microbatches=2,
            memory_limit=rng.randint(9, 15),
            objective=("period", "makespan")[case % 2],
            allow=ALLOW,
        )
        fitting = [
            [row for row in rows if peaks(problem, _alone(s, row))[s] <= problem.limit_bytes[s]] for s in range(2)
        ]
        values = (value_within_limits(problem, order_of(*pair)) for pair in itertools.product(*fitting))
        best = min(value for value in values if value is not None)
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= best
        solution = solve(problem, work_limit=5_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert solution.lower_bound_ns <= best <= solution.value_ns
        gaps.append(solution.value_ns / best - 1)
        assert verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=5).status != "wrong"
    assert sum(gap == 0 for gap in gaps) >= 3


def _alone(stage: int, row: str) -> Order:
    return order_of(*("" if s != stage else row for s in range(2)))


def test_where_1f1b_does_not_fit_the_solver_says_which_stages_are_computed_again():
    problem = asked(4, 8, memory_limit=100 + 25)
    assert {v.code for v in violations(problem, baseline("1f1b", problem))} == {"memory"}
    solution = solve(problem, work_limit=10_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    again = recomputed(solution.timetable.order)
    assert again
    assert all(f"stage {stage}" in str(solution) for stage in again)
    without = solve(replace(problem, allow=ALLOW - {"recompute"}), work_limit=10_000, workers=1)
    assert solution.value_ns < without.value_ns
    assert solution.digest == problem.digest
    assert solution.value_ns <= value_of(problem, thinned(problem, baseline("gpipe-recompute", problem)))


def test_without_a_limit_nothing_is_computed_again():
    problem = asked(3, 6)
    solution = solve(problem, start=baseline("gpipe-recompute", problem), work_limit=3_000, workers=1)
    assert not recomputed(solution.timetable.order)
    assert solution.timetable.problem == problem
    assert verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=5).ok


def test_a_limit_that_nothing_fits_and_one_that_only_recomputation_does():
    with pytest.raises(Infeasible) as error:
        solve(asked(memory_limit=110), work_limit=100)
    assert error.value.smallest_limit_bytes == (111,) * 2
    # two chunks on a rank: both forwards of a microbatch are held at the turn
    problem = asked(2, 2, placement=Placement.looped(1, 2), memory_limit=200 + 13)
    with pytest.raises(Infeasible):
        solve(replace(problem, allow=ALLOW - {"recompute"}), work_limit=100)
    solution = solve(problem, work_limit=1_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()


def test_the_smallest_choice_comes_first():
    problem = asked(4, 8, memory_limit=100 + 25)
    tried = choices(problem)
    assert tried[0] == frozenset()
    assert tried[-1] == frozenset(range(4))
    assert frozenset({0, 1}) in tried


def test_pictures_and_other_tools(tmp_path):
    problem = asked()
    timetable = simulate(problem, baseline("gpipe-recompute", problem))
    assert "C forward, computed again" in gantt(timetable, width=100)
    with pytest.raises(ProblemError, match="no word for recompute"):
        write_torch_csv(timetable, tmp_path / "t.csv")


def test_under_jitter_it_spreads_as_a_forward_does():
    assert spreads(StageSpread(forward_ns=7, backward_ns=3), Kind.RECOMPUTE) == 7
    with pytest.raises(InvalidInput, match="what to compute again"):
        solve_robust(asked(memory_limit=125))


def test_time_that_memory_forces_a_rank_to_compute_again_is_in_the_bound():
    problem = asked(4, 32, memory_limit=100 + 1 + 12)
    dear = replace(problem, profile=Profile(stages=tuple(replace(c, recompute_ns=10) for c in problem.profile.stages)))
    best, *others = lower_bounds(dear)
    assert best.name == "recompute"
    # room for one whole forward: there for 36 ns if it is kept, for 15 if not; with 21 computed again that is 711
    assert best.value_ns == 32 * 15 + 22 * 10 == 700
    assert max(bound.value_ns for bound in others) < 600
    assert verify_bound(dear, best).ok
    away = replace(dear, allow=ALLOW | {"offload"}, profile=replace(dear.profile, host_link=HostLink()))
    assert "recompute" not in {bound.name for bound in lower_bounds(away)}
    # one whole and one checkpoint: no more than two are in flight
    assert single_ranks(read_costs(problem))[0].in_flight == 2
