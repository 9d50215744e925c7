"""Bounds by relaxation against exact optima, and their certificates."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.fuzz.oracle import Reading, best_within
from tests.oracle import optimum, tiny_problem
from tests.solver.instances import instance, unequal
from zbsolve.bounds import lower_bound, lower_bounds, smallest_limits
from zbsolve.errors import Infeasible
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.solution import Bound
from zbsolve.solver import relaxation, solve
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.line import exact_unit, good_unit, read_line
from zbsolve.solver.line_answers import Limits, ask
from zbsolve.solver.line_model import Question, build
from zbsolve.solver.relaxation import improve_bound, parse_name
from zbsolve.solver.windows import Windows, climb

SIZES = ((1, 1), (1, 3), (2, 1), (2, 2), (2, 2), (3, 1), (3, 2))
SOON = Limits(seconds=20.0, deterministic=0.5)


def tight(rng: random.Random, sizes) -> Problem:
    """A tiny problem whose limits leave little or nothing above the least."""
    problem = tiny_problem(rng, None, sizes=sizes)
    if rng.random() < 0.15:
        return problem
    above = rng.choice((0, 0, 2, 5))
    return replace(problem, memory_limit=tuple(x + rng.randint(0, above) for x in smallest_limits(problem)))


def least_of(problem: Problem, unit: int, kept, value: int) -> int:
    """What the whole line proves, in ns."""
    line = read_line(problem, unit)
    question = Question(kind="whole", microbatches=problem.microbatches, kept=kept, most=4 * value // unit + 9)
    answer = ask(line, question, SOON)
    return answer.least * unit


def windows_of(problem: Problem, unit: int, value: int, mark: int = 0) -> int:
    """What windows prove, in ns."""
    line = read_line(problem, unit)
    windows = Windows(line, 4 * value // unit + 9, tuple(range(len(line.stages))), mark)
    for _ in climb(windows, longest=problem.microbatches, limits=lambda patience: SOON):
        pass
    return windows.best()[0] * unit


@pytest.mark.parametrize("block", range(8))
def test_never_above_the_optimum(block):
    rng = random.Random(f"relaxation {block}")
    exact = tried = 0
    for _ in range(25):
        problem = tight(rng, SIZES if block % 2 else ((2, 2), (2, 3), (3, 2)))
        if "fused" in problem.allow and "split" in problem.allow and problem.microbatches > 2:
            problem = replace(problem, allow=frozenset({"split"}))
            problem = replace(problem, memory_limit=smallest_limits(problem))
        found = optimum(problem)
        assert found is not None
        value = found[0]
        if not value:
            continue
        stages = problem.placement.stages
        unit = rng.choice((1, exact_unit(problem), 2, 3, 5))
        kept = rng.sample(range(stages), rng.randint(1, stages))
        whole = least_of(problem, unit, kept, value)
        assert whole <= value, (problem, unit, kept)
        assert windows_of(problem, unit, value) <= value, (problem, unit)
        everything = least_of(problem, 1, range(stages), value)
        assert everything <= value, problem
        tried += 1
        exact += max(everything, lower_bound(problem).value_ns) == value
    assert exact >= 0.85 * tried


def test_a_weight_may_wait_until_after_the_last_forward_of_a_prefix():
    """Room for one microbatch; its W runs beside the next, which must not wait for it."""
    profile = Profile.uniform(
        2, forward_ns=6, backward_input_ns=7, backward_weight_ns=2, activation_bytes=2, backward_weight_bytes=0
    )
    problem = Problem(
        profile=replace(profile, link=Link(latency_ns=4)),
        placement=Placement.linear(2),
        microbatches=2,
        memory_limit=(2, 3),
        allow=frozenset({"split"}),
    )
    value = optimum(problem)[0]
    assert value == 70
    assert windows_of(problem, 1, value) == 70
    assert least_of(problem, 1, (0, 1), value) == 70


def starts_of(timetable, line, unit: int):
    """F's, gradients and W's of the line's ranks as a timetable has them, first in, first out, in whole units."""
    problem = timetable.problem
    rows = []
    for rank, stage in zip(problem.placement.routes[0], line.stages, strict=True):
        starts = {kind: [] for kind in "FBW"}
        for timed in timetable.rank(rank):
            letter = timed.op.kind.letter
            starts[letter[0]].append(timed.start_ns)
            if letter == "BW":
                starts["W"].append(timed.start_ns + stage.gradient * unit)
        rows.append({kind: sorted(times) for kind, times in starts.items()})
    first = rows[0]["F"][0]
    return [{kind: [(t - first) // unit for t in times] for kind, times in row.items()} for row in rows]


@pytest.mark.parametrize("seed", range(12))
def test_a_timetable_of_the_problem_is_one_of_the_line(seed):
    """Put its times in for the variables: nothing that the model says may forbid them."""
    from ortools.sat.python import cp_model

    rng = random.Random(f"embed {seed}")
    checked = 0
    while checked < 6:
        ranks = rng.choice((2, 3, 4))
        problem = tight(rng, ((ranks, 1),))
        problem = replace(problem, microbatches=rng.randint(3, 9), route_of=None, memory_limit=problem.limit_bytes)
        above = rng.choice((0, 3, 12))
        limits = tuple(least + rng.randint(0, above) for least in smallest_limits(problem))
        problem = replace(problem, memory_limit=limits)
        solution = solve(problem, work_limit=60, time_limit_s=20.0, workers=1, seed=seed)
        if not solution.value_ns:
            continue
        checked += 1
        unit = rng.choice((1, 2, 3)) if problem.allow != {"split", "fused"} else 1
        line = read_line(problem, unit)
        question = Question(
            kind="whole", microbatches=problem.microbatches, kept=range(ranks), most=solution.value_ns // unit
        )
        built = build(line, question)
        for row, found in zip(built.stages, starts_of(solution.timetable, line, unit), strict=True):
            for variables, times in (
                (row.forwards, found["F"]),
                (row.gradients, found["B"]),
                (row.weights, found["W"]),
            ):
                # a line without W may have it at any time
                if variables is not row.weights or len(times) == len(variables):
                    for variable, time in zip(variables, times, strict=True):
                        built.model.add(variable == time)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 5.0
        assert solver.solve(built.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE), (problem, unit)


def proven(problem: Problem, value: int, work: float = 3.0) -> list[Bound]:
    """Every bound that improves on load, of a problem whose best timetable is not given away."""
    told: list[Bound] = []
    load = next(bound for bound in lower_bounds(problem) if bound.name == "load")
    best = improve_bound(
        problem, incumbent_ns=2 * value + 3, best=load, work_limit=work, time_limit_s=30.0, on_bound=told.append
    )
    assert best == (told[-1] if told else load)
    assert [b.value_ns for b in told] == sorted({b.value_ns for b in told})
    return told


@pytest.mark.parametrize("block", range(4))
def test_what_is_told_is_true_and_can_be_checked(block):
    rng = random.Random(f"told {block}")
    kinds = set()
    for _ in range(10):
        problem = tight(rng, ((2, 2), (3, 2), (2, 3) if block % 2 else (3, 1)))
        if len(problem.allow) == 2 and problem.microbatches > 2:
            problem = replace(problem, allow=frozenset({"fused"}), memory_limit=None)
        found = optimum(problem)
        assert found is not None
        for bound in proven(problem, found[0]):
            assert bound.value_ns <= found[0]
            kinds.add(parse_name(bound.name).kind)
            assert verify_bound(problem, bound, time_limit_s=20.0).status == "verified", bound
            assert verify_bound(problem, bound.name, found[0] + 1, time_limit_s=20.0).status == "wrong", bound
    assert kinds


@pytest.mark.parametrize("objective", ["period", "makespan"])
def test_formulas_are_computed_again(objective):
    problem = unequal(objective=objective)
    for bound in lower_bounds(problem):
        assert verify_bound(problem, bound).ok
        assert verify_bound(problem, bound.name, bound.value_ns - 1).ok
        verdict = verify_bound(problem, bound.name, bound.value_ns + 1)
        assert verdict.status == "wrong"
        assert str(bound.value_ns) in verdict.message


def test_rounded_and_exact_names_are_verified_and_refuted():
    problem = unequal(memory_limit="0.67x", scale=1000)
    best = lower_bound(problem)
    for name in ("rank-subset[0,1,2]", "rank-subset[2]", "quantised[u=1000]", "rank-subset[0,2,u=500]"):
        assert verify_bound(problem, name, best.value_ns // 2).ok, name
        assert verify_bound(problem, name, 3 * best.value_ns).status == "wrong", name
    assert verify_bound(problem, "windows[3+3,at=1]", best.value_ns // 2).ok
    for name in ("rank-subset[0,1,2]", "windows[3+3,at=0]", "quantised[u=1000]"):
        assert verify_bound(problem, name, 0).ok
        assert verify_bound(problem, name, 1).ok
    assert verify_bound(problem, "windows[3+3,at=1]", 3 * best.value_ns).status == "wrong"


@pytest.mark.parametrize(
    "name",
    [
        "windows", "windows[]", "windows[3+3]", "windows[3+4,at=0]", "windows[6+0,at=0]", "windows[3+3,at=9]",
        "windows[3+3,at=0,u=0]", "quantised[]", "quantised[u=0]", "quantised[0,u=5]", "quantised[u=1]x",
        "rank-subset[]", "rank-subset[0,0]", "rank-subset[7]", "rank-subset[01]", "rank-subset[0,at=0]",
        "rank-subset[" + "0," * 5000 + "0]", "rank-subset[99999999999999999999]", "rank-subset[0]\n",
    ],
)  # fmt: skip
def test_a_name_that_proves_nothing_is_wrong(name):
    assert verify_bound(unequal(), name, 1).status == "wrong"


def test_a_name_that_says_nothing_is_verified_by_other_means_or_not_at_all():
    problem = unequal(memory_limit="0.67x")
    best = lower_bound(problem).value_ns
    assert "counting" in verify_bound(problem, "CP-SAT", best).message
    assert verify_bound(problem, "CP-SAT", best).ok
    assert verify_bound(problem, "", 3 * best, time_limit_s=20.0).status == "not verified in time"
    tight = instance("unit-p4-m12", "0.5x", microbatches=8)
    above = improve_bound(tight, incumbent_ns=10**8, best=lower_bound(tight), work_limit=3.0, time_limit_s=30.0)
    assert above.value_ns > lower_bound(tight).value_ns
    assert verify_bound(tight, "CP-SAT", above.value_ns).ok


def test_no_time_is_no_verdict():
    problem = instance("paper-1.5B-p8-m24", "0.5x")
    for name in ("rank-subset[0,1,2,3,4,5,6,7]", "windows[12+12,at=0]"):
        assert verify_bound(problem, name, 2_030_000_000, time_limit_s=0.05).status == "not verified in time"


SEVERAL = (
    Placement.v(1),
    Placement.v(2),
    Placement.looped(2, 2),
    Placement.looped(1, 3),
    Placement.custom([0, 1, 0]),
    Placement.bidirectional(2),
    Placement.custom([0, 1, 0], [1, 0, 1]),
)


def shared(rng: random.Random) -> Problem:
    """A tiny problem in which stages share ranks, or there are two routes."""
    placement = rng.choice(SEVERAL)
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(1, 6),
            backward_input_ns=rng.randint(1, 6),
            backward_weight_ns=rng.randint(0, 5),
            activation_bytes=rng.randint(0, 4),
            backward_weight_bytes=rng.randint(0, 5),
            workspace_bytes=rng.choice((0, 0, 2)),
            optimizer_ns=(ends := rng.choice((0, 0, 3))),
            grad_reduce_ns=ends and rng.choice((0, 2)),
        )
        for _ in range(placement.stages)
    )
    problem = Problem(
        profile=Profile(stages=stages, link=Link(latency_ns=rng.choice((0, 1, 3)))),
        placement=placement,
        microbatches=rng.randint(2, 3),
        objective=rng.choice(("period", "makespan")),
        allow=frozenset(rng.choice((("split",), ("split",), ("fused",), ("split", "fused")))),
    )
    if rng.random() < 0.2:
        return problem
    return replace(problem, memory_limit=tuple(b + rng.randint(0, 6) for b in smallest_limits(problem)))


@pytest.mark.parametrize("block", range(2))
def test_never_above_the_optimum_where_stages_share_a_rank(block):
    """Against a model of the tests' own, which rounds and relaxes nothing and lets microbatches overtake each other."""
    rng = random.Random(f"shared {block}")
    tight_ones = tried = 0
    for _ in range(8):
        problem = replace(shared(rng), ends=False)
        reading = Reading(problem)
        found = best_within(reading, 10**4, seconds=10.0)
        assert found.certain
        assert found.rows is not None
        value = found.value_ns
        for bound in lower_bounds(problem):
            assert bound.value_ns <= value, (problem, bound)
        ranks = range(problem.placement.ranks)
        for unit in (1, rng.choice((2, 3))):
            line = read_line(problem, unit)
            some = rng.sample(ranks, rng.randint(1, len(ranks)))
            for chosen in (ranks, some):
                kept = [s for s, stage in enumerate(line.stages) if stage.rank in chosen]
                assert least_of(problem, unit, kept, value) <= value, (problem, unit, kept)
            if len(problem.placement.routes) == 1:
                assert windows_of(problem, unit, value, rng.randrange(len(line.stages))) <= value, (problem, unit)
        everything = least_of(problem, 1, range(len(read_line(problem, 1).stages)), value)
        tight_ones += everything == value
        tried += 1
    assert tight_ones >= 0.8 * tried


def test_several_stages_a_rank_are_proven_together_and_names_are_checked():
    profile = Profile.uniform(
        8, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=2, backward_weight_bytes=1
    )
    problem = Problem(profile=profile, placement=Placement.v(4), microbatches=4, memory_limit="0.5x")
    start = lower_bound(problem)
    assert start.name == "two-phase"
    best = improve_bound(problem, incumbent_ns=35, best=start, work_limit=2.0, time_limit_s=60.0)
    assert start.value_ns < best.value_ns == 35
    assert verify_bound(problem, best).status == "verified"
    assert verify_bound(problem, best.name, 36).status == "wrong"
    assert verify_bound(problem, "rank-subset[0,4]", 30).status == "wrong"
    assert verify_bound(problem, "windows[2+2,at=9]", 30).status == "wrong"


def test_windows_are_of_one_route_and_a_route_that_leaves_ranks_out_keeps_its_bound():
    profile = Profile.uniform(2, forward_ns=1, backward_input_ns=2, backward_weight_ns=3)
    both = Problem(profile=profile, placement=Placement.bidirectional(2), microbatches=2)
    assert verify_bound(both, "windows[1+1,at=0]", 1).status == "wrong"
    apart = Problem(profile=profile, placement=Placement.custom([0, 1], [0, 2]), microbatches=3)
    best = lower_bound(apart)
    assert improve_bound(apart, incumbent_ns=10**6, best=best, time_limit_s=5.0) == best
    assert verify_bound(apart, "rank-subset[0,1]", 1).status == "wrong"


@pytest.mark.parametrize("objective", ["period", "makespan"])
def test_huge_numbers_and_no_incumbent_do_no_harm(objective):
    small = unequal(microbatches=4, memory_limit="0.67x", objective=objective)
    best = next(bound for bound in lower_bounds(small) if bound.name == "load")
    least = improve_bound(small, incumbent_ns=2**63, best=best, work_limit=4.0, time_limit_s=30.0)
    assert least.value_ns >= lower_bound(small).value_ns
    factor = 2**45
    huge = unequal(microbatches=4, memory_limit="0.67x", objective=objective, scale=factor)
    for value in (factor, 2**63):
        found = improve_bound(huge, incumbent_ns=2**63, best=Bound(value, "load"), work_limit=1.0, time_limit_s=30.0)
        assert value <= found.value_ns <= max(value, least.value_ns * factor)
    for name in ("rank-subset[0]", "windows[2+2,at=0]", "quantised[u=1]"):
        assert verify_bound(huge, name, 2**62, time_limit_s=5.0).status != "verified"
        assert verify_bound(small, name, 2**62, time_limit_s=5.0).status == "wrong"


def test_a_limit_that_nothing_fits_is_refused():
    problem = unequal(memory_limit=3)
    with pytest.raises(Infeasible, match="no timetable fits"):
        improve_bound(problem, incumbent_ns=10**6, best=Bound(1, "load"), time_limit_s=1.0)
    with pytest.raises(Infeasible, match="no timetable fits"):
        verify_bound(problem, "rank-subset[0]", 1)


def test_names_read_back():
    for name in ("rank-subset[0,1,7]", "rank-subset[3,u=5]", "quantised[u=473000]", "windows[9+10+5,at=0,u=2]"):
        found = parse_name(name)
        assert found is not None
        assert found.name == name


def test_blocking_is_seen_where_the_formulas_are_blind():
    problem = instance("unit-p4-m12", "0.5x")
    best = lower_bound(problem)
    told: list[Bound] = []
    found = improve_bound(
        problem, incumbent_ns=70_000_000, best=best, work_limit=3.0, time_limit_s=60.0, on_bound=told.append
    )
    assert best.value_ns == 57_000_000
    assert found.value_ns >= 60_000_000
    assert told[-1] == found
    assert verify_bound(problem, found).ok


def test_the_same_work_gives_the_same_bound():
    problem = instance("paper-1.5B-p8-m24", "0.5x")
    runs = []
    for _ in range(2):
        told: list[Bound] = []
        improve_bound(
            problem,
            incumbent_ns=2_099_145_000,
            best=lower_bound(problem),
            work_limit=1.0,
            time_limit_s=60.0,
            seed=3,
            on_bound=told.append,
        )
        runs.append(told)
    assert runs[0] == runs[1] != []


def test_it_stops_at_the_incumbent():
    problem = unequal(memory_limit="0.67x")
    best = lower_bound(problem)
    assert improve_bound(problem, incumbent_ns=best.value_ns, best=best, time_limit_s=5.0) == best
    less = Bound(best.value_ns - 3, "load")
    found = improve_bound(problem, incumbent_ns=best.value_ns, best=less, work_limit=4.0, time_limit_s=20.0)
    assert found.value_ns == best.value_ns


def test_asked_outright_of_an_incumbent_that_is_not_the_best_it_still_proves_the_best(monkeypatch):
    monkeypatch.setattr(relaxation, "_windows", lambda problem, run: iter(()))
    monkeypatch.setattr(relaxation, "_subsets", lambda problem, run: iter(()))
    problem = instance("unit-p4-m12", "0.5x")
    best = improve_bound(
        problem, incumbent_ns=64_000_000, best=Bound(1, "none"), work_limit=40.0, time_limit_s=100.0, seed=1
    )
    assert best == Bound(61_000_000, "rank-subset[0,1,2,3]")


def test_units_round_down_and_lose_little():
    problem = instance("paper-1.5B-p8-m24", "0.5x")
    assert exact_unit(problem) == 1000
    unit = good_unit(problem, 2_099_145_000)
    assert unit % 1000 == 0
    rank = read_line(problem, unit).stages[0]
    for rounded, true in ((rank.forward, 18_522_000), (rank.gradient, 18_086_000), (rank.weight, 9_337_000)):
        assert 0 <= true - rounded * unit < min(unit, true // 50)
    assert good_unit(problem, 20_000_000) == 1000


def test_the_choice_of_backward_is_relaxed_to_the_better_of_both():
    cheap = unequal(microbatches=4)
    stages = tuple(replace(s, backward_ns=s.backward_input_ns + s.backward_weight_ns - 3) for s in cheap.profile.stages)
    both = replace(cheap, profile=replace(cheap.profile, stages=stages))
    rank, stage = read_line(both, 1).stages[0], stages[0]
    assert (rank.gradient, rank.weight) == (stage.backward_input_ns, stage.backward_ns - stage.backward_input_ns)
    fused = read_line(replace(both, allow=frozenset({"fused"})), 1).stages[0]
    assert (fused.gradient, fused.weight, fused.keep) == (stage.backward_ns, 0, 0)


def cheap_gradients(**given):
    """Where B is over at once and frees memory, a prefix must not hold what an early B has freed."""
    stage = StageCost(
        forward_ns=5,
        backward_input_ns=0,
        backward_weight_ns=3,
        activation_bytes=2,
        backward_weight_bytes=1,
        static_bytes=5,
    )
    return Problem(
        **{
            "profile": Profile(stages=(stage, stage), link=Link(latency_ns=1)),
            "placement": Placement.linear(2),
            "microbatches": 5,
            "memory_limit": (13, 9),
            **given,
        }
    )


def test_a_prefix_knows_nothing_of_the_gradients_it_leaves_out():
    problem = cheap_gradients()
    for incumbent in (41, 42, 45, 60):
        found = improve_bound(
            problem, incumbent_ns=incumbent, best=lower_bound(problem), work_limit=3.0, time_limit_s=60.0
        )
        assert found.value_ns <= 41
    assert not verify_bound(problem, Bound(42, "windows[4+1,at=1]"), time_limit_s=60.0).ok


@pytest.mark.parametrize("keep", [1, 3])
def test_prefixes_stay_below_the_best_that_is_found_where_gradients_are_cheap(keep):
    for seed in range(12):
        rng = random.Random(seed)
        ranks, microbatches = rng.choice([(2, 4), (2, 5), (3, 4)])
        stage = StageCost(
            forward_ns=rng.randint(3, 9),
            backward_input_ns=rng.randint(0, 1),
            backward_weight_ns=rng.randint(3, 12),
            activation_bytes=2,
            backward_weight_bytes=keep,
        )
        limits = tuple(rng.randint(4, 8) for _ in range(ranks))
        problem = cheap_gradients(
            profile=Profile(stages=(stage,) * ranks, link=Link(latency_ns=1)),
            placement=Placement.linear(ranks),
            microbatches=microbatches,
            memory_limit=limits,
            allow={"split"},
        )
        best = solve(problem, work_limit=3_000, workers=1).value_ns
        found = improve_bound(
            problem, incumbent_ns=2 * best, best=lower_bound(problem), work_limit=1.0, time_limit_s=60.0
        )
        assert found.value_ns <= best


@pytest.mark.parametrize("unit", [1_100_000, 2_000_000, 3_000_000])
@pytest.mark.parametrize("times", [1, 10, 1000])
def test_coarse_rounding_verifies_nothing_above_what_is_attained(unit, times):
    profile = Profile.uniform(
        4, forward_ns=1_000_500, backward_input_ns=1_000_700, backward_weight_ns=900_300, latency_ns=50_000
    )
    problem = Problem(profile=profile, placement=Placement.linear(4), microbatches=8, objective="makespan")
    value = solve(problem, work_limit=500, workers=1).value_ns
    for name in (f"quantised[u={unit}]", f"rank-subset[0,1,u={unit}]"):
        assert not verify_bound(problem, Bound(times * value + 1, name), time_limit_s=20.0).ok
