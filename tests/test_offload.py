"""Activations that are away in host memory for a while, from the model to the solver."""

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
from zbsolve.catalog import baseline
from zbsolve.check import peaks, violations
from zbsolve.draw.terminal import gantt
from zbsolve.errors import Infeasible, InvalidInput, OrderError, ProblemError, ProfileError
from zbsolve.files import read_profile_bytes, read_timetable_bytes, timetable_bytes
from zbsolve.files.profile import profile_bytes
from zbsolve.files.text import toml_bytes
from zbsolve.interop.torch import write_torch_csv
from zbsolve.lowering import lower, verify
from zbsolve.metrics import memory_curve, metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, HostLinkOverride, Profile, StageCost, StageSpread
from zbsolve.simulate import simulate
from zbsolve.solution import offloaded, recomputed
from zbsolve.solver import solve
from zbsolve.solver.away import folded_away, left_out, movable, moved, stay
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.copies import arranged, beside
from zbsolve.timetable import Order

ALLOW = frozenset({"split", "fused", "offload"})
KINDS = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
    "D": Kind.BACKWARD,
    "C": Kind.RECOMPUTE,
    "U": Kind.OFFLOAD,
    "X": Kind.RELEASE,
    "L": Kind.RELOAD,
}
HOST = HostLink(latency_ns=1, to_host_bytes_per_second=4 * 10**9, from_host_bytes_per_second=8 * 10**9)


def asked(ranks=2, microbatches=2, host_link=HOST, offload_bytes=8, **changes) -> Problem:
    profile = Profile.uniform(
        ranks,
        forward_ns=4,
        backward_input_ns=5,
        backward_weight_ns=6,
        activation_bytes=10,
        backward_weight_bytes=6,
        workspace_bytes=1,
        static_bytes=100,
        checkpoint_bytes=2,
        offload_bytes=offload_bytes,
        host_link=host_link,
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


def times(timetable, rank=0) -> dict[str, tuple[int, int]]:
    return {f"{t.op.kind.letter}{t.op.microbatch}": (t.start_ns, t.end_ns) for t in timetable.rows[rank]}


def test_copies_run_beside_the_computing_and_a_release_waits_for_its_own():
    problem = asked(1, 2)
    timetable = simulate(problem, order_of("F0 U0 F1 X0 D1 L0 D0"))
    assert times(timetable) == {
        "F0": (0, 4),
        "U0": (4, 7),  # 1 + 8 bytes at 4 GB/s
        "F1": (4, 8),
        "X0": (8, 8),
        "BW1": (8, 19),
        "L0": (19, 21),
        "BW0": (21, 32),
    }
    # both whole until the release, then one and what stays
    assert metrics(timetable).peak_bytes == peaks(problem, timetable) == (100 + 20 + 1,)
    assert violations(problem, timetable, claimed_ns=32) == ()
    early = simulate(problem, order_of("F0 U0 X0 F1 L0 D1 D0"))
    assert times(early)["X0"] == (7, 7)
    assert times(early)["F1"] == (7, 11)
    assert times(early)["L0"] == (11, 13)
    assert metrics(simulate(problem, order_of("F0 U0 X0 F1 D1 L0 D0"))).peak_bytes == (100 + 12 + 1,)


def test_each_way_runs_one_copy_at_a_time_in_the_order_of_the_row():
    problem = asked(1, 2, host_link=replace(HOST, to_host_bytes_per_second=10**9, from_host_bytes_per_second=10**9))
    found = times(simulate(problem, order_of("F0 U0 F1 U1 X0 X1 L1 L0 D1 D0")))
    assert (found["U0"], found["U1"]) == ((4, 13), (13, 22))
    assert (found["L1"], found["L0"]) == ((22, 31), (31, 40))
    assert found["BW1"] == (31, 42)
    assert found["BW0"] == (42, 53)


def test_what_a_copy_takes_follows_the_rank_and_the_size_of_the_microbatch_and_not_how_slow_the_rank_is():
    host = replace(HOST, overrides=(HostLinkOverride(rank=1, latency_ns=7, to_host_bytes_per_second=10**9),))
    problem = asked(2, 2, host_link=host, rank_factors=(3, 1), microbatch_factors=(1, "0.5"))
    order = moved(baseline("gpipe", problem), (0, 1))
    found = simulate(problem, order)
    assert [e - s for name, (s, e) in times(found, 0).items() if name[0] in "UL"] == [3, 2, 2, 2]
    assert [e - s for name, (s, e) in times(found, 1).items() if name[0] in "UL"] == [7 + 8, 7 + 4, 7, 7]
    # of an odd size what stays is rounded, and the rest is moved
    cost = asked(offload_bytes=7, microbatch_factors=(1, "0.5")).cost(0, 1)
    assert (cost.activation_bytes, cost.offloadable) == (5, 3)


def test_all_of_it_can_be_moved_unless_the_profile_says_less():
    cost = StageCost(forward_ns=4, backward_input_ns=1, backward_weight_ns=1, activation_bytes=7)
    assert cost.offloadable == 7
    with pytest.raises(ProfileError, match="offload_bytes are 8, more than the 7"):
        replace(cost, offload_bytes=8)
    with pytest.raises(ProfileError, match="to_host_bytes_per_second must be positive"):
        HostLink(to_host_bytes_per_second=0)
    with pytest.raises(ProfileError, match="host link of rank 1 is given twice"):
        HostLink(overrides=(HostLinkOverride(rank=1), HostLinkOverride(rank=1)))
    with pytest.raises(ProblemError, match="give it a host_link"):
        asked(host_link=None)
    with pytest.raises(ProblemError, match="host link of rank 2, but the placement has only 2 ranks"):
        asked(host_link=HostLink(overrides=(HostLinkOverride(rank=2),)))
    assert asked(host_link=None, forward_only=True).forward_only


def test_fingerprint_and_files_say_what_is_chosen_and_nothing_else():
    problem = asked()
    assert problem.digest != replace(problem, allow=ALLOW - {"offload"}).digest
    faster = replace(problem, profile=replace(problem.profile, host_link=HostLink()))
    assert problem.digest != faster.digest
    # where nothing may be moved the way there decides nothing
    plain = replace(problem, allow=ALLOW - {"offload"})
    assert plain.digest == replace(faster, allow=plain.allow).digest
    timetable = simulate(problem, moved(baseline("1f1b", problem), (0, 1)))
    content = timetable_bytes(timetable)
    assert b'["offload", 0, 0, ' in content
    assert read_timetable_bytes(content, "t.json") == timetable
    host = replace(HOST, overrides=(HostLinkOverride(rank=1, from_host_bytes_per_second=5),))
    for link in (host, HostLink(), None):
        profile = replace(problem.profile, host_link=link)
        assert read_profile_bytes(profile_bytes(profile), "p.json") == profile
        assert read_profile_bytes(toml_bytes({"format": "zbsolve.profile/1", **_plain(profile)}), "p.toml") == profile


def _plain(profile):
    from zbsolve.files.profile import profile_to_plain

    return profile_to_plain(profile)


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        (("F0 U0 X0 D0", "F0 D0"), "has no L0 of stage 0: offload, release and reload go together", "missing"),
        (("F0 L0 D0", "F0 D0"), "has no U0 of stage 0", "missing"),
        (("F0 U0 U0 X0 L0 D0", "F0 D0"), "at most once, but is done 2 times", "duplicate"),
        (("F0 U0 X0 L0 C0 D0", "F0 D0"), "one of them is needless", "needless"),
        (("U0 F0 X0 L0 D0", "F0 D0"), "can never finish", "precedence"),
        (("F0 X0 U0 L0 D0", "F0 D0"), "can never finish", "precedence"),
        (("F0 U0 L0 X0 D0", "F0 D0"), "can never finish", "precedence"),
        (("F0 U0 X0 D0 L0", "F0 D0"), "can never finish", "precedence"),
        (("F0 U1 X0 L0 D0", "F0 D0"), "not an operation of this problem", "unknown"),
    ],
)
def test_what_is_wrong_is_seen_by_graph_and_judge(rows, said, code):
    problem = asked(microbatches=1)
    with pytest.raises(OrderError, match=said):
        simulate(problem, order_of(*rows))
    assert code in {v.code for v in violations(problem, order_of(*rows))}


def test_it_has_to_be_allowed():
    problem = asked(microbatches=1)
    timetable = simulate(problem, order_of("F0 U0 X0 L0 D0", "F0 D0"))
    found = violations(replace(problem, allow=frozenset({"fused"})), timetable)
    assert {v.code for v in found} == {"not_allowed"}
    assert "does not allow to offload activations" in found[0].message


@settings(max_examples=60, deadline=None)
@given(problem=problems(offload=True, recompute=True, most_microbatches=4), seed=st.integers(0, 2**32))
def test_no_order_beats_a_bound_or_the_smallest_limit_and_what_is_lowered_never_hangs(problem, seed):
    order = random_order(problem, seed)
    timetable = simulate(problem, order)
    found = metrics(timetable).peak_bytes
    assert peaks(problem, timetable) == found
    limited = replace(problem, memory_limit=found)
    assert violations(limited, simulate(limited, order)) == ()
    assert max(bound.value_ns for bound in lower_bounds(limited)) <= value_of(limited, order)
    assert all(least <= peak for least, peak in zip(smallest_limits(problem), found, strict=True))
    for rank, (curve, peak) in enumerate(zip(memory_curve(timetable), found, strict=True)):
        assert max(held for _, held in curve) <= peak
        assert curve[-1][1] == problem.static_bytes(rank)
    verify(lower(timetable))


@settings(max_examples=30, deadline=None)
@given(problem=problems(offload=True, most_microbatches=3))
def test_the_smallest_limit_is_reached_by_one_microbatch_at_a_time(problem):
    order = baseline("naive", replace(problem, allow=frozenset({"fused"})))
    away = moved(order, range(problem.placement.stages))
    assert metrics(simulate(problem, away)).peak_bytes == smallest_limits(problem)


@settings(max_examples=40, deadline=None)
@given(problem=problems(offload=True), seed=st.integers(0, 2**32), chosen=st.sets(st.integers(0, 11)))
def test_a_folded_order_keeps_its_peaks_and_copies_put_beside_are_no_slower(problem, seed, chosen):
    chosen = frozenset(stage for stage in chosen if stage < problem.placement.stages)
    inner = folded_away(problem, chosen)
    order = random_order(inner, seed)
    away = moved(order, chosen)
    assert left_out(away) == order
    before, after = metrics(simulate(inner, order)).peak_bytes, metrics(simulate(problem, away)).peak_bytes
    assert all(a <= b for a, b in zip(after, before, strict=True))
    limited = replace(problem, memory_limit=after)
    thin = stay(limited, away)
    assert violations(limited, simulate(limited, thin)) == ()
    assert value_of(limited, thin) <= value_of(limited, away)
    value, apart = beside(limited, away)
    assert value == value_of(limited, apart) <= value_of(limited, away)
    assert violations(limited, apart) == ()
    best = arranged(limited, away)
    assert violations(limited, simulate(limited, best)) == ()
    assert value_of(limited, best) <= value


def every_row(moves: bool) -> list[str]:
    """All rows of a stage for two microbatches, with fused backwards, first in, first out."""
    rows = set()
    for ways in itertools.product(("F D", "F U X L D") if moves else ("F D",), repeat=2):
        chains = [[f"{letter}{j}" for letter in way.split()] for j, way in enumerate(ways)]
        rows |= {" ".join(row) for row in merges(chains)}
    return [row for row in sorted(rows) if row.index("F0") < row.index("F1") and row.index("D0") < row.index("D1")]


def test_bounds_hold_and_the_solver_comes_close_to_the_best_of_all_orders():
    rng = random.Random(5)
    gaps = []
    for case in range(4):
        stages = tuple(
            StageCost(
                forward_ns=rng.randint(2, 6),
                backward_input_ns=rng.randint(2, 6),
                backward_weight_ns=rng.randint(0, 4),
                activation_bytes=8,
                offload_bytes=(rng.randint(4, 8), 0)[s],
            )
            for s in range(2)
        )
        host = HostLink(latency_ns=rng.randint(0, 2), to_host_bytes_per_second=rng.choice([10**9, 4 * 10**9]))
        problem = Problem(
            profile=Profile(stages=stages, host_link=host),
            placement=Placement.linear(2),
            microbatches=2,
            memory_limit=(rng.randint(9, 15), 16),
            objective=("period", "makespan")[case % 2],
            allow=frozenset({"fused", "offload"}),
        )
        pairs = itertools.product(every_row(True), every_row(False))
        values = (value_within_limits(problem, order_of(*pair)) for pair in pairs)
        best = min(value for value in values if value is not None)
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= best
        solution = solve(problem, work_limit=3_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert solution.lower_bound_ns <= best <= solution.value_ns
        gaps.append(solution.value_ns / best - 1)
        assert verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=5).status != "wrong"
    assert gaps == [0] * 4


def test_where_1f1b_does_not_fit_the_solver_says_which_stages_are_moved_away():
    problem = asked(4, 8, memory_limit=100 + 25)
    assert {v.code for v in violations(problem, baseline("1f1b", problem))} == {"memory"}
    solution = solve(problem, work_limit=8_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    away = offloaded(solution.timetable.order)
    assert away
    assert all(f"stage {stage}" in str(solution) for stage in away)
    without = solve(replace(problem, allow=ALLOW - {"offload"}), work_limit=8_000, workers=1)
    assert solution.value_ns < without.value_ns
    assert solution.digest == problem.digest
    assert set(movable(problem)) >= set(away)


def test_of_both_ways_the_better_is_taken():
    slow = HostLink(to_host_bytes_per_second=10**8, from_host_bytes_per_second=10**8)
    for host, way in ((HostLink(), offloaded), (slow, recomputed)):
        problem = asked(4, 8, memory_limit=100 + 25, host_link=host, allow=ALLOW | {"recompute"})
        solution = solve(problem, work_limit=6_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert way(solution.timetable.order)
        for allow in (ALLOW, frozenset({"split", "fused", "recompute"})):
            one = solve(replace(problem, allow=allow), work_limit=3_000, workers=1)
            assert solution.value_ns <= one.value_ns


def test_without_a_limit_nothing_is_moved():
    problem = asked(3, 6)
    start = moved(baseline("1f1b", problem), (0, 1, 2))
    solution = solve(problem, start=start, work_limit=2_000, workers=1)
    assert not offloaded(solution.timetable.order)
    assert solution.timetable.problem == problem
    limited = replace(problem, memory_limit="4x")
    solution = solve(limited, start=start, work_limit=2_000, workers=1)
    assert not offloaded(solution.timetable.order)


def test_a_limit_that_nothing_fits_and_one_that_only_moving_away_does():
    with pytest.raises(Infeasible) as error:
        solve(asked(memory_limit=110), work_limit=100)
    assert error.value.smallest_limit_bytes == (111,) * 2
    # two chunks on a rank: both forwards of a microbatch are held at the turn
    problem = asked(2, 2, placement=Placement.looped(1, 2), memory_limit=200 + 13)
    with pytest.raises(Infeasible):
        solve(replace(problem, allow=ALLOW - {"offload"}), work_limit=100)
    solution = solve(problem, work_limit=1_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()


def test_pictures_and_other_tools(tmp_path):
    problem = asked()
    timetable = simulate(problem, moved(baseline("1f1b", problem), (0,)))
    assert "copies to host memory and back run beside" in gantt(timetable, width=100)
    with pytest.raises(ProblemError, match="no word for offload"):
        write_torch_csv(timetable, tmp_path / "t.csv")


def test_under_jitter_copies_take_what_their_bytes_do():
    assert spreads(StageSpread(forward_ns=7, backward_ns=3), Kind.RELOAD) == 0
    with pytest.raises(InvalidInput, match="or to move away"):
        solve_robust(asked(memory_limit=125))


@pytest.mark.parametrize(("microbatches", "slices", "best"), [(2, 2, 110), (4, 4, 230), (8, 4, 500)])
def test_what_is_released_counts_once_where_it_is_decided_what_stays(microbatches, slices, best):
    """A release holds its bytes until it ends: counted beside what stays, no room was left for it."""
    cost = StageCost(forward_ns=10, backward_input_ns=10, backward_weight_ns=10, activation_bytes=10)
    problem = Problem(
        profile=Profile(stages=(cost, cost), host_link=HostLink(latency_ns=20)),
        placement=Placement.linear(2),
        microbatches=microbatches,
        slices=slices,
        memory_limit=15,
        allow=ALLOW,
    )
    solution = solve(problem, work_limit=4_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    assert solution.value_ns <= best


def test_what_stays_takes_the_room_behind_its_release():
    problem = asked(1, 2, offload_bytes=10, memory_limit=100 + 11)
    order = order_of("F0 U0 X0 L0 D0 F1 U1 X1 L1 D1")
    assert stay(problem, order) == order_of("F0 D0 F1 D1")


def test_no_value_is_told_that_is_too_good():
    host = HostLink(latency_ns=20)
    problem = replace(asked(4, 8, memory_limit=100 + 25, host_link=host), allow=ALLOW)
    told: list[tuple[int, float]] = []
    solution = solve(
        problem, work_limit=3000, workers=1, on_progress=lambda p: told.append((p.value_ns, p.gap)), time_limit_s=60
    )
    assert told[-1][0] == solution.value_ns
    assert all(value >= solution.value_ns and gap >= 0 for value, gap in told)
