"""A steady state by CP-SAT: k microbatches in a window that repeats for ever.

The *rhythm* of a pipeline is a timetable of k microbatches with a length T such that microbatch j + k
runs T later than microbatch j, operation by operation. It has 3 k operations a rank however many
microbatches there are, so CP-SAT finds the best one for small k where it is lost on the whole. Where
memory is tight the best k is hardly ever 1: microbatches meet others on their way up, and where they
meet depends on the distances between them, which need not be equal.

Variables are the starts of the k microbatches (number 0..k-1, first in, first out) and T.

- Within a microbatch precedences hold, with their lags.
- Two operations a, b of a rank exclude each other in all repetitions if, some whole number q of windows
  away, b stands between two repetitions of a: a + d_a <= b + q T and b + q T + d_b <= a + T.
- An F may start if for some a and c that fit the memory together the a-th microbatch before it is through
  with B and the c-th with W: then at most a are in flight, itself among them, and c - a wait for W.
  Microbatch -1 is microbatch k - 1 a window earlier.

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
from zbsolve.solver.line import reads
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
)

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Beat", "BeatRank", "Rhythm", "find_rhythm", "read_beat", "sizes_worth", "unroll"]

_FINEST = 200
"""Units in the most work that a rank has for one microbatch: finer ones take far longer and gain a promille."""

_SIZES = (2, 4, 3, 5, 1, 6, 8)
"""Microbatches of a window."""

_RAMPS = 2
"""Microbatches, in ranks, that fill and drain the pipeline."""

_MOST = 80
"""Microbatches of a window times ranks beyond which CP-SAT finds nothing in time."""

_FORWARD, _GRADIENT, _WEIGHT = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatRank:
    """One rank of a beat.

    Parameters
    ----------
    rank
        Its number.
    durations
        Of F, B and W in units; the fused backward and 0 where the backward runs fused.
    down, up
        Lags of an output to the next rank and of its gradient back, in units; 0 on the last rank.
    held, keep
        Bytes from the start of F to the end of B, and from there to the end of W.
    room
        Bytes for them.
    """

    rank: int
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
    """What every microbatch does: ranks in the order of their stages; `unit_ns` is what one unit of time is."""

    ranks: tuple[BeatRank, ...]
    unit_ns: int

    @property
    def work(self) -> int:
        """The most work that a rank has for one microbatch, in units."""
        return max(sum(rank.durations) for rank in self.ranks)

    @property
    def loop(self) -> int:
        """One microbatch alone, from its first F to its last gradient, in units."""
        return sum(sum(r.durations[:2]) + r.down + r.up for r in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """A steady state, in units.

    Parameters
    ----------
    length
        T, the length of a window.
    starts
        Of F, B, W (first index) of each stage (second) and microbatch of the window (third).
    """

    length: int
    starts: tuple[tuple[tuple[int, ...], ...], ...]


def sizes_worth(problem: Problem) -> tuple[int, ...]:
    """Sizes of windows to try, the most promising first; none where the iteration is too short for a steady part."""
    ranks = problem.placement.ranks
    if (
        not reads(problem)
        or problem.forward_only
        or problem.microbatch_factors
        or problem.slices > 1
        or problem.microbatches <= _RAMPS * ranks
    ):
        return ()
    return tuple(size for size in _SIZES if size * ranks <= _MOST)


def read_beat(net: NDArray[np.int64], fused: Sequence[int]) -> Beat | None:
    """The beat of a network; None unless all microbatches are alike and each rank has one chunk.

    Parameters
    ----------
    net
        The network, in arrays.
    fused
        By node whether it is fused; the first microbatch of each stage tells for all.
    """
    count, parts = int(net[SHAPE][3]), int(net[SHAPE][5])
    if not net[SHAPE][4]:
        return None
    stages = parts // count
    first = [[(part * stages + s) * count for part in range(3)] for s in range(stages)]
    durations = [[int(net[NET_DURATION][2 * node + fused[node]]) for node in each] for each in first]
    unit = max(1, max(map(sum, durations)) // _FINEST)

    def units(time: int) -> int:
        return (2 * time + unit) // (2 * unit)

    ranks = []
    for s, (forward, gradient, _) in enumerate(first):
        inner = s + 1 < stages
        rank = int(net[RANK][forward])
        held = int(net[NET_CHANGE][2 * forward])
        workspace = int(net[NET_START][2 * forward]) - held
        ranks.append(
            BeatRank(
                rank=rank,
                # a unit at least, so that no two operations of a rank start at once
                durations=(
                    max(1, units(durations[s][_FORWARD])),
                    max(1, units(durations[s][_GRADIENT])),
                    0 if fused[gradient] else max(1, units(durations[s][_WEIGHT])),
                ),
                down=units(_lag(net, forward, first[s + 1][_FORWARD])) if inner else 0,
                up=units(_lag(net, first[s + 1][_GRADIENT], gradient)) if inner else 0,
                held=held,
                keep=held + int(net[NET_CHANGE][2 * gradient + fused[gradient]]),
                room=int(net[LIMIT][rank] - net[BASE][rank]) - workspace,
            )
        )
    return Beat(ranks=tuple(ranks), unit_ns=unit)


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
        Told of each better rhythm.
    """
    from ortools.sat.python import cp_model

    least = size * beat.work
    if most < least:
        return 0.0
    model = cp_model.CpModel()
    length = model.new_int_var(least, most, "")
    in_flight = min(max(len(r.choices(2 * len(beat.ranks))) for r in beat.ranks), 2 * len(beat.ranks))
    horizon = (2 + 2 * in_flight // size) * most + beat.loop
    starts = [[[model.new_int_var(0, horizon, "") for _ in range(size)] for _ in beat.ranks] for _ in range(3)]
    model.add(starts[_FORWARD][0][0] == 0)
    _chains(model, beat, starts)
    for s, rank in enumerate(beat.ranks):
        own = [starts[part][s] for part in range(3)]
        _in_turn(model, rank, own, length)
        _exclude(model, rank, own, length, furthest=2 + 2 * in_flight // size)
        _fit(model, rank, own, length, in_flight)
    model.minimize(length)

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found = tuple(tuple(tuple(self.value(v) for v in row) for row in part) for part in starts)
            on_rhythm(Rhythm(length=self.value(length), starts=found))

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
    solver.solve(model, Listener())
    return float(solver.response_proto.deterministic_time)


Starts = list[list[list[Any]]]
"""Start variables of F, B, W, by stage, by microbatch of the window."""


def _chains(model: cp_model.CpModel, beat: Beat, starts: Starts) -> None:
    """Within each microbatch: down, back, and W after B."""
    forwards, gradients, weights = starts
    for s, rank in enumerate(beat.ranks):
        forward, gradient, _ = rank.durations
        for j in range(len(forwards[s])):
            model.add(weights[s][j] >= gradients[s][j] + gradient)
            if s + 1 < len(beat.ranks):
                model.add(forwards[s + 1][j] >= forwards[s][j] + forward + rank.down)
                model.add(gradients[s][j] >= gradients[s + 1][j] + beat.ranks[s + 1].durations[_GRADIENT] + rank.up)
            else:
                model.add(gradients[s][j] >= forwards[s][j] + forward)


def _in_turn(model: cp_model.CpModel, rank: BeatRank, own: list[list[Any]], length: cp_model.IntVar) -> None:
    """Operations of a kind one after the other, and the first of the next window after the last of this."""
    for starts, duration in zip(own, rank.durations, strict=True):
        for before, after in itertools.pairwise(starts):
            model.add(after >= before + duration)
        model.add(starts[0] + length >= starts[-1] + duration)


def _exclude(
    model: cp_model.CpModel, rank: BeatRank, own: list[list[Any]], length: cp_model.IntVar, furthest: int
) -> None:
    """Operations of different kinds never at once, in any repetition."""
    for a, b in itertools.combinations(range(3), 2):
        if not (rank.durations[a] and rank.durations[b]):
            continue
        for one, other in itertools.product(own[a], own[b]):
            cases = []
            # B and W come after F and B: they are moved back by whole windows, seldom forward
            for windows in range(-furthest, 2):
                case = model.new_bool_var("")
                moved = other + windows * length
                model.add(moved >= one + rank.durations[a]).only_enforce_if(case)
                model.add(moved + rank.durations[b] <= one + length).only_enforce_if(case)
                cases.append(case)
            model.add_exactly_one(cases)


def _fit(model: cp_model.CpModel, rank: BeatRank, own: list[list[Any]], length: cp_model.IntVar, most: int) -> None:
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
    size, stages = len(rhythm.starts[0][0]), len(beat.ranks)
    rows: list[list[int]] = [[] for _ in beat.ranks]
    for s, rank in enumerate(beat.ranks):
        timed = []
        for part, j in itertools.product(range(3), range(microbatches)):
            start = rhythm.starts[part][s][j % size] + j // size * rhythm.length
            # only a fused backward's W, which stands for nothing, can start together with another
            timed.append((start, start + rank.durations[part], part, (part * stages + s) * microbatches + j))
        timed.sort()
        rows[rank.rank] = [node for *_, node in timed]
    return rows
