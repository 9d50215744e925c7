"""The judge and the graph say the same: over random problems of every placement.

Whatever the simulator times, the judge accepts; what is broken on purpose, it rejects, and for the
reason that it was broken for. Each mutation below is made so that it surely breaks its rule.
"""

import dataclasses
import inspect
import random
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from zbsolve.check import peaks, violations
from zbsolve.errors import OrderError
from zbsolve.metrics import metrics, peak_bytes
from zbsolve.opgraph import Int32, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, Profile
from zbsolve.simulate import Timer, simulate
from zbsolve.timetable import Order, TimedOp, Timetable

SPLIT = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
SEEDS = st.integers(0, 2**32)


def codes(problem, x, **claim) -> set[str]:
    return {violation.code for violation in violations(problem, x, **claim)}


def some_order(problem: Problem, rng: random.Random) -> Order:
    return random_order(problem, rng.getrandbits(32), fused=rng.choice([0, 0.3, 1]))


# What is right is accepted


@settings(max_examples=1000, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_every_simulated_order_is_accepted_and_its_peaks_and_value_are_the_same(problem, seed):
    order = some_order(problem, random.Random(seed))
    timetable = simulate(problem, order)
    figures = metrics(timetable)
    value = figures.period_ns if problem.objective == "period" else figures.makespan_ns
    assert peaks(problem, order) == peaks(problem, timetable) == figures.peak_bytes
    exact = dataclasses.replace(problem, memory_limit=figures.peak_bytes)
    assert violations(exact, order) == ()
    assert violations(exact, timetable, claimed_ns=value) == ()


@settings(max_examples=200, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_one_byte_less_than_a_peak_is_too_little(problem, seed):
    order = some_order(problem, random.Random(seed))
    graph = OpGraph.build(problem, order.rows)
    exact = peak_bytes(graph, graph.encode(order))
    for rank, peak in enumerate(exact):
        if peak:
            less = dataclasses.replace(problem, memory_limit=(*exact[:rank], peak - 1, *exact[rank + 1 :]))
            (found,) = violations(less, order)
            assert found.code == "memory"
            assert found.message.startswith(f"rank {rank} exceeds its limit of {peak - 1} bytes")


# What the graph refuses, the judge refuses, and nothing else


@settings(max_examples=400, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_an_order_deadlocks_for_the_timer_iff_it_does_for_the_judge(problem, seed):
    rng = random.Random(seed)
    rows = [list(row) for row in some_order(problem, rng).rows]
    for shuffles in range(4):
        for row in rows:
            for _ in range(shuffles if len(row) > 1 else 0):
                a = rng.randrange(len(row))
                row.insert(a + rng.choice([-1, 1, 1, 2]), row.pop(a))
        order = Order(tuple(tuple(row) for row in rows))
        graph = OpGraph.build(problem, order.rows)
        try:
            Timer(graph, graph.encode(order))
            runs = True
        except OrderError:
            runs = False
        assert runs == (codes(problem, order) == set())
        assert codes(problem, order) <= {"precedence", "deadlock"}


def fits_the_graph(graph: OpGraph, rows: tuple[Int32, ...], timetable: Timetable) -> bool:
    """Whether times keep every duration, row and arc of the graph, and begin at 0."""
    start, end = np.zeros(len(graph), dtype=np.int64), np.zeros(len(graph), dtype=np.int64)
    in_row = True
    for nodes, row in zip(rows, timetable.rows, strict=True):
        start[nodes], end[nodes] = [t.start_ns for t in row], [t.end_ns for t in row]
        network = graph.lane[nodes] != graph.rank[nodes]
        for lane in (nodes[graph.lane[nodes] == which] for which in np.unique(graph.lane[nodes])):
            in_row = in_row and bool(np.all(start[lane[1:]] >= end[lane[:-1]]))
        for at in np.flatnonzero(network).tolist():  # not before the last computation ahead of it
            in_row = in_row and bool(np.all(end[nodes[:at]][~network[:at]] <= start[nodes[at]]))
    return (
        in_row
        and start.min() == 0
        and bool(np.all(end - start == graph.duration_ns))
        and bool(np.all(start[graph.arc_head] >= end[graph.arc_tail] + graph.arc_lag_ns))
    )


@settings(max_examples=300, deadline=None)
@given(problem=problems(most_microbatches=3, variants=True), seed=SEEDS)
def test_shaken_times_are_accepted_iff_they_fit_the_graph(problem, seed):
    rng = random.Random(seed)
    timetable = simulate(problem, some_order(problem, rng))
    slack = simulate_with_room(timetable, rng)
    graph = OpGraph.build(problem, timetable.order.rows)
    nodes = graph.encode(timetable.order)
    for base in (timetable, slack):
        for _ in range(4):
            rows = [list(row) for row in base.rows]
            for _ in range(rng.randint(1, 2)):
                row = rng.choice([row for row in rows if row])
                at = rng.randrange(len(row))
                by = rng.choice([-3, -2, -1, 1, 2, 3])
                row[at] = TimedOp(row[at].op, row[at].start_ns + by, row[at].end_ns + by + rng.choice([0, 0, 0, 1]))
            shaken = timed(problem, rows)
            if min(t.start_ns for row in rows for t in row) < 0:
                assert "time" in codes(problem, shaken)
            else:
                assert (codes(problem, shaken) == set()) == fits_the_graph(graph, nodes, shaken)


def simulate_with_room(timetable: Timetable, rng: random.Random) -> Timetable:
    """Valid times of the same order that leave room: those on links up to 3 ns slower, and durations kept."""
    problem = timetable.problem
    link = dataclasses.replace(problem.profile.link, latency_ns=problem.profile.link.latency_ns + rng.randint(1, 3))
    profile = dataclasses.replace(problem.profile, link=link)
    slower = simulate(dataclasses.replace(problem, profile=profile), timetable.order)
    return dataclasses.replace(slower, problem=problem)


# What is broken is rejected


class Case:
    """A right timetable, and chances to break it."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.rng = random.Random(seed)
        self.timetable = simulate(problem, some_order(problem, self.rng))
        self.value = self.timetable.period_ns if problem.objective == "period" else self.timetable.makespan_ns
        self.seat_of = {part: (r, i) for r, i in self.seats() for part in self.timetable.rows[r][i].op.parts}

    @property
    def rows(self) -> list[list[TimedOp]]:
        """A copy to break."""
        return [list(row) for row in self.timetable.rows]

    def seats(self, keep: Callable[[int, int, TimedOp], bool] = lambda *_: True) -> list[tuple[int, int]]:
        return [(r, i) for r, row in enumerate(self.timetable.rows) for i, t in enumerate(row) if keep(r, i, t)]


@dataclasses.dataclass(frozen=True)
class Broken:
    """What became of it, the codes of which one must be found, and what is asked or claimed instead."""

    rows: list[list[TimedOp]]
    because: set[str]
    problem: Problem | None = None
    claimed: int | None = None


def timed(problem: Problem, rows: list[list[TimedOp]]) -> Timetable:
    return Timetable(problem=problem, rows=tuple(tuple(row) for row in rows))


def moved(timed_op: TimedOp, by: int) -> TimedOp:
    return TimedOp(timed_op.op, timed_op.start_ns + by, timed_op.end_ns + by)


def drop_one(case: Case) -> Broken:
    rows = case.rows
    rank, at = case.rng.choice(case.seats(lambda _r, _i, t: t.op.kind is not Kind.RECOMPUTE))
    del rows[rank][at]
    return Broken(rows, {"missing"})


def do_one_twice(case: Case) -> Broken:
    rows = case.rows
    rank, at = case.rng.choice(case.seats())
    rows[rank].insert(case.rng.randint(0, len(rows[rank])), rows[rank][at])
    return Broken(rows, {"duplicate"})


def do_one_again_on_another_rank(case: Case) -> Broken | None:
    rows = case.rows
    rank, at = case.rng.choice(case.seats())
    if len(rows) == 1:
        return None
    other = case.rng.choice([r for r in range(len(rows)) if r != rank])
    rows[other].insert(case.rng.randint(0, len(rows[other])), rows[rank][at])
    return Broken(rows, {"duplicate"})


def move_one_to_another_rank(case: Case) -> Broken | None:
    rows = case.rows
    rank, at = case.rng.choice(case.seats())
    if len(rows) == 1:
        return None
    other = case.rng.choice([r for r in range(len(rows)) if r != rank])
    moving = rows[rank].pop(at)
    rows[other].insert(case.rng.randint(0, len(rows[other])), moving)
    # the other rank may hold a replica of the stage, whose own end of the iteration it then does twice
    return Broken(rows, {"misplaced", "duplicate"} if moving.op.microbatch is None else {"misplaced"})


def exchange_two_rows(case: Case) -> Broken | None:
    rows = case.rows
    if len(rows) == 1:
        return None
    a, b = case.rng.sample(range(len(rows)), 2)
    rows[a], rows[b] = rows[b], rows[a]
    return Broken(rows, {"misplaced"}) if rows[a] or rows[b] else None


def lose_a_row(case: Case) -> Broken:
    rows = case.rows
    del rows[case.rng.randrange(len(rows))]
    return Broken(rows, {"rows"})


def add_a_row(case: Case) -> Broken:
    rows = case.rows
    rows.insert(case.rng.randint(0, len(rows)), [])
    return Broken(rows, {"rows"})


def add_a_foreign_one(case: Case) -> Broken:
    rows, problem = case.rows, case.problem
    stages, microbatches = problem.placement.stages, problem.microbatches
    stage, microbatch = case.rng.choice(
        [
            (stages, 0),
            (-1, 0),
            (0, microbatches),
            (0, -1),
            (stages - 1, -1),
            (stages - 1, None),
            (2**80, 2**80),
            (0, stages * microbatches),
        ]
    )
    row = case.rng.choice(rows)
    at = case.rng.randint(0, len(row))
    now = row[at - 1].end_ns if at else 0
    kinds = [kind for kind in Kind if microbatch is not None or not kind.of_iteration]
    row.insert(at, TimedOp(Op(case.rng.choice(kinds), stage, microbatch), now, now))
    return Broken(rows, {"unknown"})


def fuse_but_keep_the_weight_gradient(case: Case) -> Broken | None:
    rows = case.rows
    split = case.seats(lambda _r, _i, t: t.op.kind is Kind.BACKWARD_INPUT)
    if not split:
        return None
    rank, at = case.rng.choice(split)
    old = rows[rank][at]
    rows[rank][at] = dataclasses.replace(old, op=dataclasses.replace(old.op, kind=Kind.BACKWARD))
    return Broken(rows, {"duplicate"})


def unfuse_but_forget_the_weight_gradient(case: Case) -> Broken | None:
    rows = case.rows
    fused = case.seats(lambda _r, _i, t: t.op.kind is Kind.BACKWARD)
    if not fused:
        return None
    rank, at = case.rng.choice(fused)
    old = rows[rank][at]
    half = case.rng.choice([Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT])
    rows[rank][at] = dataclasses.replace(old, op=dataclasses.replace(old.op, kind=half))
    return Broken(rows, {"missing"})


def allow_the_other_kind_only(case: Case) -> Broken | None:
    backwards = case.seats(lambda _r, _i, t: t.op.kind in (*SPLIT, Kind.BACKWARD))
    if not backwards:
        return None
    rank, at = case.rng.choice(backwards)
    word = "split" if case.timetable.rows[rank][at].op.kind is Kind.BACKWARD else "fused"
    return Broken(case.rows, {"not_allowed"}, problem=dataclasses.replace(case.problem, allow=frozenset({word})))


def allow_no_recomputation(case: Case) -> Broken | None:
    if not case.seats(lambda _r, _i, t: t.op.kind is Kind.RECOMPUTE):
        return None
    asked = dataclasses.replace(case.problem, allow=case.problem.allow - {"recompute"})
    return Broken(case.rows, {"not_allowed"}, problem=asked)


def recompute_out_of_turn(case: Case) -> Broken | None:
    """Ahead of its forward, or behind its backward."""
    rows = case.rows
    again = case.seats(lambda _r, _i, t: t.op.kind is Kind.RECOMPUTE)
    if not again:
        return None
    rank, at = case.rng.choice(again)
    op = rows[rank][at].op
    part = case.rng.choice([Kind.FORWARD, Kind.BACKWARD_INPUT])
    _, other = case.seat_of[Op(part, op.stage, op.microbatch)]
    rows[rank].insert(other, rows[rank].pop(at))
    return Broken(rows, {"precedence"})


def allow_no_offload(case: Case) -> Broken | None:
    if not case.seats(lambda _r, _i, t: t.op.kind.moves):
        return None
    asked = dataclasses.replace(case.problem, allow=case.problem.allow - {"offload"})
    return Broken(case.rows, {"not_allowed"}, problem=asked)


def move_away_out_of_turn(case: Case) -> Broken | None:
    """Ahead of what comes before it, or behind what comes after."""
    rows = case.rows
    moves = case.seats(lambda _r, _i, t: t.op.kind.moves)
    if not moves:
        return None
    chain = (Kind.FORWARD, Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD, Kind.BACKWARD_INPUT)
    rank, at = case.rng.choice(moves)
    op = rows[rank][at].op
    part = chain[chain.index(op.kind) + case.rng.choice([-1, 1])]
    _, other = case.seat_of[Op(part, op.stage, op.microbatch)]
    rows[rank].insert(other, rows[rank].pop(at))
    return Broken(rows, {"precedence"})


def compute_again_what_is_away(case: Case) -> Broken | None:
    away = case.seats(lambda _r, _i, t: t.op.kind is Kind.RELOAD)
    if not away:
        return None
    rows = case.rows
    rank, at = case.rng.choice(away)
    timed_op = rows[rank][at]
    again = dataclasses.replace(timed_op.op, kind=Kind.RECOMPUTE)
    rows[rank].insert(at, dataclasses.replace(timed_op, op=again))
    return Broken(rows, {"needless"})


def run_a_backward_among_forwards_only(case: Case) -> Broken | None:
    rows, seats = case.rows, case.seats()
    if not case.problem.forward_only:
        return None
    rank, at = case.rng.choice(seats)
    op = dataclasses.replace(rows[rank][at].op, kind=case.rng.choice([*SPLIT, Kind.BACKWARD]))
    rows[rank].append(TimedOp(op, rows[rank][-1].end_ns, rows[rank][-1].end_ns))
    return Broken(rows, {"unknown"})


def ask_for_forwards_only(case: Case) -> Broken | None:
    if case.problem.forward_only:
        return None
    return Broken(case.rows, {"unknown"}, problem=dataclasses.replace(case.problem, forward_only=True))


def ask_for_no_end_of_the_iteration(case: Case) -> Broken | None:
    ends = {t.op.stage for row in case.rows for t in row if t.op.microbatch is None}
    if not ends:
        return None
    stages = list(case.problem.profile.stages)
    stage = case.rng.choice(sorted(ends))
    stages[stage] = dataclasses.replace(stages[stage], optimizer_ns=0, grad_reduce_ns=0)
    profile = dataclasses.replace(case.problem.profile, stages=tuple(stages))
    return Broken(case.rows, {"unknown"}, problem=dataclasses.replace(case.problem, profile=profile))


def optimize_before_all_gradients_are_there(case: Case) -> Broken | None:
    rows = case.rows
    seats = case.seats(lambda _r, _i, t: t.op.kind is Kind.OPTIMIZER)
    if not seats:
        return None
    rank, at = case.rng.choice(seats)
    stage = rows[rank][at].op.stage
    before = [
        i
        for i, t in enumerate(rows[rank])
        if t.op.stage == stage and Kind.BACKWARD_WEIGHT in {p.kind for p in t.op.parts}
    ]
    if not before:
        return None
    rows[rank].insert(before[-1], rows[rank].pop(at))
    return Broken(rows, {"precedence"})


def exchange_two_of_a_row_of_which_one_needs_the_other(case: Case) -> Broken | None:
    if case.problem.forward_only:
        return None
    rows = case.rows
    stage, microbatch = case.rng.randrange(case.problem.placement.stages), case.rng.randrange(case.problem.microbatches)
    part = case.rng.choice([Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT])
    rank, first = case.seat_of[Op(Kind.FORWARD, stage, microbatch)]
    _, then = case.seat_of[Op(part, stage, microbatch)]
    row = rows[rank]
    row[first], row[then] = row[then], row[first]
    return Broken(rows, {"precedence"})


def exchange_their_times_alone(case: Case) -> Broken | None:
    if case.problem.forward_only:
        return None
    rows = case.rows
    stage, microbatch = case.rng.randrange(case.problem.placement.stages), case.rng.randrange(case.problem.microbatches)
    rank, first = case.seat_of[Op(Kind.FORWARD, stage, microbatch)]
    _, then = case.seat_of[Op(Kind.BACKWARD_INPUT, stage, microbatch)]
    row = rows[rank]
    a, b = row[first], row[then]
    row[first] = dataclasses.replace(a, start_ns=b.start_ns, end_ns=b.end_ns)
    row[then] = dataclasses.replace(b, start_ns=a.start_ns, end_ns=a.end_ns)
    return Broken(rows, {"row_order"})


def start_one_with_what_it_needs(case: Case) -> Broken | None:
    """B of a stage at the start of its F, which always takes some time here."""
    if case.problem.forward_only:
        return None
    rows = case.rows
    stage, microbatch = case.rng.randrange(case.problem.placement.stages), case.rng.randrange(case.problem.microbatches)
    rank, first = case.seat_of[Op(Kind.FORWARD, stage, microbatch)]
    _, then = case.seat_of[Op(Kind.BACKWARD_INPUT, stage, microbatch)]
    rows[rank][then] = moved(rows[rank][then], rows[rank][first].start_ns - rows[rank][then].start_ns)
    return Broken(rows, {"precedence"})


def let_two_ranks_wait_for_each_other(case: Case) -> Broken | None:
    """At a boundary between ranks a and b: on a F of i behind B of j, on b B of j behind F of i."""
    rows, problem = case.rows, case.problem
    if problem.forward_only:
        return None
    boundaries = [
        (s, i, j)
        for s in range(problem.placement.stages - 1)
        for i in range(problem.microbatches)
        for j in range(problem.microbatches)
        if i != j
        and problem.route_of[i] == problem.route_of[j]
        and problem.rank_of(Op(Kind.FORWARD, s, i)) != problem.rank_of(Op(Kind.FORWARD, s + 1, i))
    ]
    if not boundaries:
        return None
    s, i, j = case.rng.choice(boundaries)
    for behind, ahead in (
        (Op(Kind.FORWARD, s, i), Op(Kind.BACKWARD_INPUT, s, j)),
        (Op(Kind.BACKWARD_INPUT, s + 1, j), Op(Kind.FORWARD, s + 1, i)),
    ):
        row = rows[problem.rank_of(ahead)]
        b = next(k for k, t in enumerate(row) if behind in t.op.parts)
        a = next(k for k, t in enumerate(row) if ahead in t.op.parts)
        if b < a:
            row.insert(a, row.pop(b))
    return Broken(rows, {"precedence", "deadlock"})


def start_one_earlier(case: Case) -> Broken | None:
    """All but a rank's first run as soon as they can, so 1 ns earlier is too early for something."""
    rows = case.rows
    seats = case.seats(lambda _r, i, _t: i > 0)
    if not seats:
        return None
    rank, at = case.rng.choice(seats)
    rows[rank][at] = moved(rows[rank][at], -1)
    return Broken(rows, {"overlap", "row_order", "precedence", "transfer", "time"})


def start_one_before_its_message(case: Case) -> Broken | None:
    """Those that came in over a link just in time."""
    rows = case.rows
    graph = OpGraph.build(case.problem, case.timetable.order.rows)
    tight = []
    columns = (graph.arc_tail, graph.arc_head, graph.arc_lag_ns, graph.arc_bytes)
    for tail, head, lag, size in zip(*(column.tolist() for column in columns), strict=True):
        if graph.rank[tail] != graph.rank[head] and size >= 0:
            (r, i), (q, k) = case.seat_of[graph.op(tail).parts[0]], case.seat_of[graph.op(head).parts[0]]
            if rows[q][k].start_ns == rows[r][i].end_ns + lag:
                tight.append((q, k))
    if not tight:
        return None
    rank, at = case.rng.choice(tight)
    rows[rank][at] = moved(rows[rank][at], -1)
    return Broken(rows, {"transfer"} if rows[rank][at].start_ns >= 0 else {"time"})


def start_one_much_later(case: Case) -> Broken | None:
    """Then the next of its row comes too early, or the row ends later than is claimed."""
    rows = case.rows
    seats = case.seats(lambda r, _i, _t: len(rows[r]) > 1)
    if not seats:
        return None
    rank, at = case.rng.choice(seats)
    rows[rank][at] = moved(rows[rank][at], 1 + case.timetable.makespan_ns)
    last = at == len(rows[rank]) - 1
    if rows[rank][at].op.kind.resource != "compute":  # what computes behind it goes on, but for what needs it
        return Broken(rows, {"row_order", "precedence"})
    return Broken(rows, {"claim", "first_start"} if last else {"row_order"}, claimed=case.value)


def start_all_later(case: Case) -> Broken:
    by = case.rng.randint(1, 9)
    return Broken([[moved(t, by) for t in row] for row in case.rows], {"first_start"})


def start_before_0(case: Case) -> Broken:
    by = -case.rng.randint(1, 9)
    return Broken([[moved(t, by) for t in row] for row in case.rows], {"time"})


def break_a_number(case: Case) -> Broken:
    rows = case.rows
    rank, at = case.rng.choice(case.seats())
    old = rows[rank][at]
    wrong = case.rng.choice([float(old.end_ns), None, str(old.end_ns), float("inf"), np.int64(old.end_ns)])
    rows[rank][at] = TimedOp(old.op, old.start_ns, wrong)
    return Broken(rows, {"time"})


def change_a_duration(case: Case) -> Broken:
    rows = case.rows
    rank, at = case.rng.choice(case.seats())
    old = rows[rank][at]
    ends = [TimedOp(old.op, old.start_ns, old.end_ns + by) for by in (-1, 1)]
    begins = [TimedOp(old.op, old.start_ns + by, old.end_ns) for by in (-1, 1)]
    rows[rank][at] = case.rng.choice([t for t in ends + begins if min(t.start_ns, t.end_ns) >= 0])
    return Broken(rows, {"duration"})


def claim_another_value(case: Case) -> Broken:
    return Broken(case.rows, {"claim"}, claimed=case.value + case.rng.choice([-1, 1]))


def limit_one_byte_less(case: Case) -> Broken | None:
    exact = peaks(case.problem, case.timetable)
    rank = case.rng.randrange(len(exact))
    if not exact[rank]:
        return None
    limit = (*exact[:rank], exact[rank] - 1, *exact[rank + 1 :])
    return Broken(case.rows, {"memory"}, problem=dataclasses.replace(case.problem, memory_limit=limit))


MUTATIONS = (
    drop_one,
    do_one_twice,
    do_one_again_on_another_rank,
    move_one_to_another_rank,
    exchange_two_rows,
    lose_a_row,
    add_a_row,
    add_a_foreign_one,
    fuse_but_keep_the_weight_gradient,
    unfuse_but_forget_the_weight_gradient,
    allow_the_other_kind_only,
    allow_no_recomputation,
    recompute_out_of_turn,
    allow_no_offload,
    move_away_out_of_turn,
    compute_again_what_is_away,
    run_a_backward_among_forwards_only,
    ask_for_forwards_only,
    ask_for_no_end_of_the_iteration,
    optimize_before_all_gradients_are_there,
    exchange_two_of_a_row_of_which_one_needs_the_other,
    exchange_their_times_alone,
    start_one_with_what_it_needs,
    let_two_ranks_wait_for_each_other,
    start_one_earlier,
    start_one_before_its_message,
    start_one_much_later,
    start_all_later,
    start_before_0,
    break_a_number,
    change_a_duration,
    claim_another_value,
    limit_one_byte_less,
)
OF_THE_ORDER = {
    "rows",
    "unknown",
    "not_allowed",
    "misplaced",
    "missing",
    "duplicate",
    "needless",
    "memory",
    "precedence",
    "deadlock",
}


def is_broken_and_seen(mutation: Callable[[Case], Broken | None], case: Case) -> bool:
    """Break a timetable in one way and hold the judge to it; False if there was nothing to break so."""
    it = mutation(case)
    if it is None:
        return False
    asked = it.problem or case.problem
    mutant = timed(asked, it.rows)
    found = codes(asked, mutant, claimed_ns=it.claimed)
    assert found & it.because, f"{mutation.__name__} went unseen: {found or 'nothing'} found"
    if it.because <= OF_THE_ORDER and (asked, mutant.order) != (case.problem, case.timetable.order):
        assert codes(asked, mutant.order) & it.because, f"{mutation.__name__} went unseen in the order alone"
    return True


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
        variants = {"forward_only": True}, {"profile": ends}, again, away, {}
        for variant in (dataclasses.replace(problem, **changes) for changes in variants):
            seen += sum(is_broken_and_seen(mutation, Case(variant, seed)) for seed in range(12))
    assert seen >= 16


# Whatever it is given, it gives an answer

ANY_INT = st.one_of(st.integers(-1, 6), st.integers())
ANY_OP = st.builds(Op, st.sampled_from(Kind), ANY_INT, st.one_of(st.none(), ANY_INT))
ANY_ROWS = st.lists(st.lists(st.builds(TimedOp, ANY_OP, ANY_INT, ANY_INT), max_size=12), max_size=5)
DOCUMENTED = re.findall(r"^`(\w+)`", inspect.getdoc(sys.modules["zbsolve.check"]), flags=re.MULTILINE)


@settings(max_examples=300, deadline=None)
@given(problem=problems(most_microbatches=2, limits=True, variants=True), rows=ANY_ROWS, claimed=ANY_INT)
def test_any_rows_are_judged_in_the_order_of_the_rules(problem, rows, claimed):
    junk = timed(problem, rows)
    for x, claim in ((junk, claimed), (junk.order, None)):
        found = violations(problem, x, claimed_ns=claim)
        order_of_rules = [DOCUMENTED.index(v.code) for v in found if v.code != "precedence"]
        assert order_of_rules == sorted(order_of_rules)
        assert all(len(v.message) < 2000 for v in found)
        peaks(problem, x)


def test_the_table_names_every_code():
    assert len(DOCUMENTED) == len(set(DOCUMENTED)) == 17
    mutations = {"overlap", *OF_THE_ORDER, "time", "first_start", "duration", "row_order", "transfer", "claim"}
    assert set(DOCUMENTED) == mutations
