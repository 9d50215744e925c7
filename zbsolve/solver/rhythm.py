"""A steady state by CP-SAT: k microbatches in a window that repeats for ever.

The *rhythm* of a pipeline is a timetable of k microbatches with a length T such that microbatch j + k
runs T later than microbatch j, operation by operation. It has 3 k operations a stage however many
microbatches there are, so CP-SAT finds the best one for small k where it is lost on the whole. Where
memory is tight the best k is hardly ever 1: microbatches meet others on their way up, and where they
meet depends on the distances between them, which need not be equal.

Variables are the starts of the k microbatches (number 0..k-1, first in, first out at every stage) and T.

- Within a microbatch precedences hold, with their lags.
- Two operations a, b of a rank exclude each other in all repetitions if, some whole number q of windows
  away, b stands between two repetitions of a: a + d_a <= b + q T and b + q T + d_b <= a + T.
- Memory of a rank with one stage: an F may start if for some a and c that fit the memory together the a-th
  microbatch before it is through with B and the c-th with W: then at most a are in flight, itself among them, and
  c - a wait for W. Microbatch -1 is microbatch k - 1 a window earlier.
- Memory of a rank with several: the q's of an F say how often every other operation of the rank has run before it,
  up to a number that is the same for the F, the B and the W of a stage. So the bytes there are a sum over the q's.

Unrolled to the microbatches of a problem, the first and the last ones miss the neighbours that the rhythm
counts on: that is the ramp. An order sorted by these times fits the memory, as nothing is there that the
rhythm does not have. Times are rounded here, so the order is timed exactly afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.problem import Problem
from zbsolve.solver.network import (
    BASE,
    LIMIT,
    NEED,
    NEED_LAG,
    NEED_PTR,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    RANK,
    SHAPE,
    TWIN,
)

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Beat", "BeatStage", "Rhythm", "find_rhythm", "read_beat", "sizes_worth", "unroll"]

_FINEST = 200
"""Units in the most work that a rank has for one microbatch: finer ones take far longer and gain a promille."""

_SIZES, _SIZES_OF_CHUNKS = (2, 4, 3, 5, 1, 6, 8), (2, 3, 1, 4, 6)
"""Microbatches of a window, the most promising first."""

_RAMPS, _RAMPS_OF_CHUNKS = 2, 1
"""Microbatches, in ranks, that fill and drain the pipeline; with several stages a rank the first soon come back."""

_MOST = 80
"""Microbatches of a window times stages beyond which CP-SAT finds nothing in time."""

_FORWARD, _GRADIENT, _WEIGHT = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatStage:
    """One stage of a beat, as the microbatches of one route see it.

    Parameters
    ----------
    stage, rank, route
        Its number, where it runs, and the route.
    durations
        Of F, B and W in units; the fused backward and 0 where the backward runs fused.
    down, up
        Lags of an output to the next stage and of its gradient back, in units; 0 on the last stage.
    held, keep
        Bytes from the start of F to the end of B, and from there to the end of W.
    room
        Bytes for them on the rank.
    """

    stage: int
    rank: int
    route: int
    durations: tuple[int, int, int]
    down: int
    up: int
    held: int
    keep: int
    room: int

    def choices(self, most: int) -> list[tuple[int, int]]:
        """Pairs (a, c): a in flight and c - a waiting for W fit; a up to `most`.

        Where W keeps more than F holds, those in flight count as if they kept it already, so that no B can
        exceed the room.
        """
        each = max(self.held, self.keep)
        pairs = []
        for a in range(1, most + 1):
            left = self.room - a * each
            if left < 0:
                break
            pairs.append((a, a + (min(most, left // self.keep) if self.keep else most)))
        return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What every microbatch does.

    Parameters
    ----------
    stages
        In the order in which a microbatch comes by them, route after route.
    routes
        The route of each microbatch.
    unit_ns
        What one unit of time is.
    """

    stages: tuple[BeatStage, ...]
    routes: tuple[int, ...]
    unit_ns: int

    def numbers(self, stage: BeatStage, size: int) -> list[int]:
        """The microbatches of a window that come by a stage."""
        return [j for j in range(size) if self.routes[j] == stage.route]

    def work(self, size: int) -> int:
        """The most work that a rank has for a window, in units."""
        work: dict[int, int] = {}
        for stage in self.stages:
            more = sum(stage.durations) * len(self.numbers(stage, size))
            work[stage.rank] = work.get(stage.rank, 0) + more
        return max(work.values())

    @property
    def loop(self) -> int:
        """No less than one microbatch alone takes, from its first F to its last gradient, in units."""
        return sum(sum(s.durations[:2]) + s.down + s.up for s in self.stages)

    @property
    def in_flight(self) -> int:
        """The most microbatches at once between F and B of a stage that are looked at."""
        most = 2 * len(self.stages)
        return min(max(len(stage.choices(most)) for stage in self.stages), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """A steady state, in units.

    Parameters
    ----------
    size
        Microbatches of a window.
    length
        T, the length of a window.
    starts
        Of F, B, W (first index) at each stage of the beat (second), of each microbatch of the window there (third).
    """

    size: int
    length: int
    starts: tuple[tuple[tuple[int, ...], ...], ...]


def sizes_worth(problem: Problem) -> tuple[int, ...]:
    """Sizes of windows to try, the most promising first; none where the iteration is too short for a steady part."""
    placement, taken = problem.placement, problem.route_of
    assert taken is not None
    stages = placement.stages * len(placement.routes)
    ramps = _RAMPS if stages == placement.ranks else _RAMPS_OF_CHUNKS
    differ = problem.microbatch_factors or problem.slices > 1
    if problem.forward_only or differ or problem.microbatches <= ramps * placement.ranks:
        return ()
    return tuple(
        size
        for size in (_SIZES if stages == placement.ranks else _SIZES_OF_CHUNKS)
        if size <= problem.microbatches
        and size * placement.stages <= _MOST
        and all(taken[j] == taken[j % size] for j in range(problem.microbatches))
    )


def read_beat(net: NDArray[np.int64], fused: Sequence[int]) -> Beat | None:
    """The beat of a network; None unless all microbatches of a route are alike.

    Parameters
    ----------
    net
        The network, in arrays.
    fused
        By node whether it is fused; the first microbatch of each stage and route tells for all.
    """
    count, parts = int(net[SHAPE][3]), int(net[SHAPE][5])
    stages = parts // count
    twins = [tuple(column) for column in net[TWIN][: 3 * parts].reshape(3 * stages, count).T.tolist()]
    ways = [tuple(column) for column in net[RANK][:parts].reshape(stages, count).T.tolist()]
    firsts = {way: ways.index(way) for way in dict.fromkeys(ways)}
    if any(twins[j] != twins[firsts[way]] for j, way in enumerate(ways)):
        return None
    nodes = [[[(part * stages + s) * count + j for part in range(3)] for s in range(stages)] for j in firsts.values()]
    work: dict[int, int] = {}
    for each in (each for way in nodes for each in way):
        rank = int(net[RANK][each[0]])
        work[rank] = work.get(rank, 0) + sum(int(net[NET_DURATION][2 * node + fused[node]]) for node in each)
    unit = max(1, max(work.values()) // _FINEST)
    return Beat(
        stages=tuple(
            _beat_stage(net, fused, way, s, route, unit) for route, way in enumerate(nodes) for s in range(stages)
        ),
        routes=tuple(list(firsts).index(way) for way in ways),
        unit_ns=unit,
    )


def _beat_stage(
    net: NDArray[np.int64], fused: Sequence[int], way: Sequence[Sequence[int]], s: int, route: int, unit: int
) -> BeatStage:
    def units(time: int) -> int:
        return (2 * time + unit) // (2 * unit)

    forward, gradient, weight = way[s]
    inner = s + 1 < len(way)
    rank = int(net[RANK][forward])
    held = int(net[NET_CHANGE][2 * forward])
    durations = [units(int(net[NET_DURATION][2 * node + fused[node]])) for node in (forward, gradient, weight)]
    parts = int(net[SHAPE][5])
    there = np.flatnonzero(net[RANK][:parts] == rank)
    workspace = int((net[NET_START][2 * there] - net[NET_CHANGE][2 * there]).max())
    return BeatStage(
        stage=s,
        rank=rank,
        route=route,
        # a unit at least, so that no two operations of a rank start at once
        durations=(max(1, durations[0]), max(1, durations[1]), 0 if fused[gradient] else max(1, durations[2])),
        down=units(_lag(net, forward, way[s + 1][_FORWARD])) if inner else 0,
        up=units(_lag(net, way[s + 1][_GRADIENT], gradient)) if inner else 0,
        held=held,
        keep=held + int(net[NET_CHANGE][2 * gradient + fused[gradient]]),
        room=int(net[LIMIT][rank] - net[BASE][rank]) - workspace,
    )


def _lag(net: NDArray[np.int64], tail: int, head: int) -> int:
    low, high = net[NEED_PTR][head], net[NEED_PTR][head + 1]
    return int(net[NEED_LAG][low:high][net[NEED][low:high] == tail].max())


def find_rhythm(
    beat: Beat,
    size: int,
    *,
    most: int,
    seconds: float,
    deterministic: float | None,
    seed: int,
    on_rhythm: Callable[[Rhythm], None],
) -> float:
    """Search the rhythms with windows of `size` microbatches; CP-SAT's deterministic time used.

    Parameters
    ----------
    beat
        What every microbatch does.
    size
        Microbatches of a window.
    most
        The greatest length of a window that is of interest, in units.
    seconds, deterministic, seed
        When to stop, and the seed of CP-SAT's random choices.
    on_rhythm
        Told of each better rhythm, and then of others as short whose microbatches come through sooner.
    """
    from ortools.sat.python import cp_model

    if size > len(beat.routes):
        return 0.0
    least = beat.work(size)
    if most < least or any(way != beat.routes[j % size] for j, way in enumerate(beat.routes)):
        return 0.0
    model = cp_model.CpModel()
    length = model.new_int_var(least, most, "")
    furthest = 2 + 2 * beat.in_flight // size
    horizon = furthest * most + beat.loop
    starts = [
        [[model.new_int_var(0, horizon, "") for _ in beat.numbers(stage, size)] for stage in beat.stages]
        for _ in range(3)
    ]
    if len(set(beat.routes)) == 1:
        model.add(starts[_FORWARD][0][0] == 0)
    _chains(model, beat, starts)
    for rank in sorted({stage.rank for stage in beat.stages}):
        here = [at for at, stage in enumerate(beat.stages) if stage.rank == rank]
        lines = [
            _Line(stage=beat.stages[at], part=part, starts=starts[part][at])
            for at in here
            for part in range(3)
            if beat.stages[at].durations[part] and starts[part][at]
        ]
        for line in lines:
            _in_turn(model, line, length)
        passed = _exclude(model, lines, length, furthest)
        if len(here) == 1:
            _fit(model, beat.stages[here[0]], [starts[part][here[0]] for part in range(3)], length, beat.in_flight)
        else:
            _fit_together(model, lines, passed)
    model.minimize(length)

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found = tuple(tuple(tuple(self.value(v) for v in row) for row in part) for part in starts)
            on_rhythm(Rhythm(size=size, length=self.value(length), starts=found))

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.num_workers = 1
    # from below, with little preparation: the first rhythm found so is nearly always the best
    solver.parameters.use_objective_lb_search = True
    solver.parameters.linearization_level = 0
    solver.parameters.cp_model_probing_level = 0
    if deterministic is not None:
        solver.parameters.max_deterministic_time = max(0.001, deterministic)
    status = solver.solve(model, Listener())
    work = float(solver.response_proto.deterministic_time)
    left = seconds - solver.wall_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or left <= 0:
        return work
    if deterministic is not None:
        if work >= deterministic:
            return work
        solver.parameters.max_deterministic_time = max(0.001, min(deterministic - work, 2 * work))
    # others as short: where microbatches come through sooner, ramps are often shorter
    model.add(length <= solver.value(length))
    for starts_of in (row for part in starts for row in part):
        for start in starts_of:
            model.add_hint(start, solver.value(start))
    firsts = [at for at, stage in enumerate(beat.stages) if stage.stage == 0]
    pairs = [zip(starts[_GRADIENT][at], starts[_FORWARD][at], strict=True) for at in firsts]
    model.minimize(sum(gradient - forward for each in pairs for gradient, forward in each))
    solver.parameters.max_time_in_seconds = max(0.01, left)
    solver.parameters.use_objective_lb_search = False
    solver.solve(model, Listener())
    return work + float(solver.response_proto.deterministic_time)


Starts = list[list[list[Any]]]
"""Start variables of F, B, W, by stage of the beat, by microbatch of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The operations of a kind of a stage, in a window."""

    stage: BeatStage
    part: int
    starts: list[Any]

    @property
    def duration(self) -> int:
        return self.stage.durations[self.part]

    @property
    def place(self) -> tuple[int, int]:
        """Where it comes on a microbatch's way down and back."""
        return self.part, self.stage.stage if self.part == _FORWARD else -self.stage.stage

    def in_turn_with(self, other: _Line) -> bool:
        """Whether each microbatch comes by both, in a sequence that is known: a W may come any time behind its B."""
        parts = {self.part, other.part}
        loose = _WEIGHT in parts and _FORWARD not in parts and self.stage is not other.stage
        return self.stage.route == other.stage.route and not loose


def _chains(model: cp_model.CpModel, beat: Beat, starts: Starts) -> None:
    """Within each microbatch: down, back, and W after B."""
    forwards, gradients, weights = starts
    for s, stage in enumerate(beat.stages):
        forward, gradient, _ = stage.durations
        after = beat.stages[s + 1] if s + 1 < len(beat.stages) else None
        for j in range(len(forwards[s])):
            model.add(weights[s][j] >= gradients[s][j] + gradient)
            if after is not None and after.route == stage.route:
                model.add(forwards[s + 1][j] >= forwards[s][j] + forward + stage.down)
                model.add(gradients[s][j] >= gradients[s + 1][j] + after.durations[_GRADIENT] + stage.up)
            else:
                model.add(gradients[s][j] >= forwards[s][j] + forward)


def _in_turn(model: cp_model.CpModel, line: _Line, length: cp_model.IntVar) -> None:
    """Operations of a kind one after the other, and the first of the next window after the last of this."""
    for before, after in itertools.pairwise(line.starts):
        model.add(after >= before + line.duration)
    model.add(line.starts[0] + length >= line.starts[-1] + line.duration)


Passed = dict[tuple[int, int, int, int], Any]
"""By line and number of an operation, line and number of another: the windows until the other stands behind it."""


def _exclude(model: cp_model.CpModel, lines: Sequence[_Line], length: cp_model.IntVar, furthest: int) -> Passed:
    """Operations of different kinds never at once, in any repetition."""
    passed: Passed = {}
    by_way = sorted(range(len(lines)), key=lambda at: lines[at].place)
    for a, b in itertools.combinations(by_way, 2):
        first, second = lines[a], lines[b]
        # what a microbatch comes by later is moved back by whole windows, seldom forward
        forth = 2 if first.in_turn_with(second) else furthest + 1
        for i, one in enumerate(first.starts):
            for j, other in enumerate(second.starts):
                cases, windows = [], range(-furthest, forth)
                for window in windows:
                    case = model.new_bool_var("")
                    moved = other + window * length
                    model.add(moved >= one + first.duration).only_enforce_if(case)
                    model.add(moved + second.duration <= one + length).only_enforce_if(case)
                    cases.append(case)
                model.add_exactly_one(cases)
                count = sum(window * case for window, case in zip(windows, cases, strict=True))
                passed[a, i, b, j] = count
                # the one, moved by 1 - q windows, is the first of its kind behind the other
                passed[b, j, a, i] = 1 - count
    return passed


def _fit_together(model: cp_model.CpModel, lines: Sequence[_Line], passed: Passed) -> None:
    """Memory at the start of every F of a rank with several stages.

    With q windows until an operation stands behind the F, its repetitions -1, -2, ... up to q - 1 stand before it:
    q of them more than those before window 0. All that is taken before that number is given back before it, too.
    """
    if sum(line.stage.held for line in lines) == 0:
        return
    for at, line in enumerate(lines):
        if line.part != _FORWARD:
            continue
        for i in range(len(line.starts)):
            level = line.stage.room
            total: Any = 0
            for other_at, other in enumerate(lines):
                # where W keeps more than F holds, those in flight count as if they kept it already
                held, keep = max(other.stage.held, other.stage.keep), other.stage.keep
                change = (held, keep - held, -keep)[other.part]
                for j in range(len(other.starts)):
                    before = (1 if j <= i else 0) if other_at == at else passed[at, i, other_at, j]
                    total += change * before
            model.add(total <= level)


def _fit(model: cp_model.CpModel, rank: BeatStage, own: list[list[Any]], length: cp_model.IntVar, most: int) -> None:
    """Memory at the start of every F."""
    forwards, gradients, weights = own
    for j, forward in enumerate(forwards):
        cases = []
        for a, c in rank.choices(most):
            case = model.new_bool_var("")
            for starts, duration, back in ((gradients, rank.durations[1], a), (weights, rank.durations[2], c)):
                window, number = divmod(j - back, len(forwards))
                model.add(starts[number] + window * length + duration <= forward).only_enforce_if(case)
            cases.append(case)
        model.add_bool_or(cases)


def unroll(rhythm: Rhythm, beat: Beat, microbatches: int) -> list[list[int]]:
    """Each rank's row as nodes of the network, for all microbatches, sorted by time."""
    stages = 1 + max(stage.stage for stage in beat.stages)
    timed: list[list[tuple[int, int, int, int]]] = [[] for _ in range(1 + max(stage.rank for stage in beat.stages))]
    for at, stage in enumerate(beat.stages):
        numbers = beat.numbers(stage, rhythm.size)
        for part, j in itertools.product(range(3), range(microbatches)):
            if beat.routes[j] == stage.route:
                start = rhythm.starts[part][at][numbers.index(j % rhythm.size)] + j // rhythm.size * rhythm.length
                # only a fused backward's W, which stands for nothing, can start together with another
                node = (part * stages + stage.stage) * microbatches + j
                timed[stage.rank].append((start, start + stage.durations[part], part, node))
    return [[node for *_, node in sorted(row)] for row in timed]
