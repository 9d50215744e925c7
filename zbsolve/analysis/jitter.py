"""How long an order takes when no operation takes exactly what was measured.

The model
    Every operation of every iteration takes its planned duration times exp(sigma z): a lognormal
    factor of median 1, since a profile holds medians. z is standard normal, drawn independently for
    each operation and drawn anew beyond 3, so that no single outlier decides. Sigma is one number
    for all, or follows from the interquartile range that was measured: the quartiles of the factor
    are exp(-0.6745 sigma) and exp(0.6745 sigma), so IQR = 2 median sinh(0.6745 sigma). Transfers take
    what they are planned to take. A rank that is slow all the time is not jitter but a rank factor.

What is timed
    The order stays; every operation starts as soon as its row and its inputs let it, planned times
    are not waited for. Under the period objective a trial is a run of several iterations with no
    barrier, from the planned first starts x of the ranks on. With y the ranks' last ends in the last of n
    iterations, the period of the run is max(y - x) / n, rounded up: how late the run is in the end,
    an iteration. With no jitter that is exactly the period of the order, for any n: it is at most n
    times the period since the planned times attain it, and no less than n times the greatest cycle
    mean, since max(A^n x - x) is never below n times the eigenvalue of a max-plus matrix A (Baccelli,
    Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992, section 3.7). Under the
    makespan objective a trial is one iteration.

Who is to blame
    What is critical in a trial is the chain of operations that waited for nothing but each other, back
    from the last end that sets its value. An operation is charged with what it took beyond its plan
    while it was critical. A chain in which nothing is late is never longer than planned, so the
    charges add up to no less than what the run is late.

Draws depend on the seed and on the operation alone, so two orders of one problem meet the same luck.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbsolve.analysis.network import Network
from zbsolve.errors import InvalidInput, ProblemError
from zbsolve.ops import Kind, Op
from zbsolve.profile import StageSpread
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable
from zbsolve.units import MAX_AMOUNT

__all__ = ["MOST_JITTER", "Blame", "Draws", "Jittered", "quantile", "spreads", "under_jitter"]

Int64 = NDArray[np.int64]

MOST_JITTER = 1.0
"""Of sigma: beyond it one operation in twenty takes more than five times its median."""

_FARTHEST = 3.0
"""Normal draws beyond this many standard deviations are drawn anew."""

_QUARTILE = 0.6744897501960817
"""The upper quartile of the standard normal distribution."""

_BLOCK = 64
"""Trials timed together; part of what a draw depends on."""

_MOST_CACHED = 2**24
"""Draws kept for other orders of the same problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """How much of the lateness one operation, or those of a kind on a stage, have on them.

    Parameters
    ----------
    op
        The operation; without a microbatch, all of its kind and stage in that row.
    rank
        In whose row.
    critical
        The share of iterations in which it is critical; of several operations the mean number that are.
    late_ns
        By how much it exceeds its plan while it is critical, mean over iterations; may be below 0.
    """

    op: Op
    rank: int
    critical: float
    late_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Jittered:
    """What came out of the trials.

    Parameters
    ----------
    objective
        Of which the values are: ``"period"`` or ``"makespan"``.
    planned_ns
        Of the order without jitter.
    values_ns
        Of each trial, sorted.
    iterations
        Of one trial.
    relative
        Sigma of every operation; None where the measured spread was taken.
    seed
        Of the draws.
    operations
        Every operation, most to blame first.
    stages
        The same, added up by kind, stage and rank.
    """

    objective: str
    planned_ns: int
    values_ns: tuple[int, ...]
    iterations: int
    relative: float | None
    seed: int
    operations: tuple[Blame, ...]
    stages: tuple[Blame, ...]

    @property
    def p50_ns(self) -> int:
        """At most this in half of the trials."""
        return quantile(self.values_ns, 0.5)

    @property
    def p95_ns(self) -> int:
        """At most this in 95 of 100 trials."""
        return quantile(self.values_ns, 0.95)


def quantile(values: tuple[int, ...], share: float) -> int:
    """The least of some sorted values that at least such a share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


class Draws:
    """The luck of every operation: standard normal numbers by seed and operation, kept for the next order.

    Parameters
    ----------
    seed, iterations
        Of what, and how many numbers a trial.
    """

    def __init__(self, seed: int, iterations: int) -> None:
        self.seed, self.iterations = seed, iterations
        self._kept: dict[tuple[int, int, Op], NDArray[np.float64]] = {}

    def of(self, block: int, rank: int, op: Op) -> NDArray[np.float64]:
        """Shape (iterations, trials of a block)."""
        key = (block, rank, op)
        found = self._kept.get(key)
        if found is None:
            microbatch = 0 if op.microbatch is None else op.microbatch + 1
            name = zlib.crc32(op.kind.value.encode())
            rng = np.random.default_rng([self.seed, block, name, op.stage, microbatch, rank])
            found = rng.standard_normal((self.iterations, _BLOCK))
            while (far := np.abs(found) > _FARTHEST).any():
                found[far] = rng.standard_normal(int(far.sum()))
            if len(self._kept) * found.size < _MOST_CACHED:
                self._kept[key] = found
        return found


def under_jitter(
    timetable: Timetable,
    relative: float | None = 0.05,
    *,
    trials: int = 500,
    iterations: int = 10,
    seed: int = 0,
    draws: Draws | None = None,
    blame: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Jittered:
    """Time an order many times under jitter.

    Parameters
    ----------
    timetable
        Whose order; its planned times do not matter.
    relative
        Sigma: 0.05 is about 5 % of every duration. None takes the spread that the profile holds.
    trials
        How often.
    iterations
        Of a trial under the period objective.
    seed
        Of the draws.
    draws
        Those of another call with the same seed and iterations, so as not to draw them again.
    blame
        Whether to tell who is to blame; without it both lists are empty.
    on_progress
        Told now and then how many trials are done, and of how many.

    Raises
    ------
    InvalidInput
        If an argument makes no sense, or the profile holds no spread.
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    _check_arguments(relative, trials, iterations, seed)
    network = Network.of(simulate(timetable.problem, timetable.order))
    if not network.by_period:
        iterations = 1
    sigma = _sigma(network, relative)
    _refuse_overflow(network, float(sigma.max(initial=0)), iterations)
    draws = draws or Draws(seed, iterations)
    run = _Run(network, iterations)
    values: list[int] = []
    planned = network.duration
    critical, late = np.zeros(len(planned), dtype=np.int64), np.zeros(len(planned))
    for block, here in _blocks(trials):
        duration = np.empty((iterations, len(planned), here), dtype=np.int64)
        duration[:, len(network.timed) :] = planned[
            len(network.timed) :, None
        ]  # transfers take what they are planned to
        for node, timed in enumerate(network.timed):
            luck = draws.of(block, network.rank(node), timed.op)[:, :here]
            duration[:, node] = np.rint(planned[node] * np.exp(sigma[node] * luck))
        total, last = run.forward(duration)
        values += (-(-total // iterations)).tolist()
        if blame:
            for iteration, on_chain in run.back(last):
                critical += on_chain.sum(axis=1)
                late += (on_chain * (duration[iteration] - planned[:, None])).sum(axis=1)
        if on_progress is not None:
            on_progress(len(values), trials)
    operations, stages = _blamed(network, critical, late, trials * iterations) if blame else ((), ())
    return Jittered(
        objective=timetable.problem.objective,
        planned_ns=network.value_ns,
        values_ns=tuple(sorted(values)),
        iterations=iterations,
        relative=relative,
        seed=seed,
        operations=operations,
        stages=stages,
    )


def spreads(spread: StageSpread, kind: Kind) -> int:
    """The measured interquartile range of a kind, in ns; of a fused backward that was not measured, of both halves."""
    if kind.moves:  # a copy was not measured, and takes what its bytes do
        return 0
    if kind is Kind.RECOMPUTE:  # the same work
        return spread.forward_ns
    own = int(getattr(spread, f"{kind.value}_ns", 0))
    if kind is Kind.BACKWARD and not own:
        return round(math.hypot(spread.backward_input_ns, spread.backward_weight_ns))
    return own


def _check_arguments(relative: float | None, trials: int, iterations: int, seed: int) -> None:
    if relative is not None and not 0 <= relative <= MOST_JITTER:
        raise InvalidInput(f"jitter must be within 0 and {MOST_JITTER:.0%}, got {relative!r}")
    for value, what in ((trials, "trial"), (iterations, "iteration")):
        if value < 1:
            raise InvalidInput(f"jitter needs at least one {what}, got {value!r}")
    if seed < 0:
        raise InvalidInput(f"the seed must be 0 or more, got {seed!r}")


def _sigma(network: Network, relative: float | None) -> NDArray[np.float64]:
    """Sigma of every node."""
    if relative is not None:
        return np.full(len(network.timed), relative)
    profile = network.timetable.problem.profile
    if not profile.source.spread:
        raise InvalidInput(
            "the profile holds no measured spread; measure it with zbsolve profile measure, or say how much, such as 5%"
        )
    found = np.zeros(len(network.timed))
    known: dict[tuple[tuple[Kind, int], ...], float] = {}
    for node, timed in enumerate(network.timed):
        key = tuple((op.kind, op.stage) for op in timed.op.halves)
        if key not in known:  # of what runs together, as if each took its own time of it
            median = sum(int(getattr(profile.stages[stage], f"{kind.value}_ns", 0)) for kind, stage in key)
            iqr = math.hypot(*(spreads(profile.source.spread[stage], kind) for kind, stage in key))
            known[key] = min(MOST_JITTER, math.asinh(iqr / (2 * median)) / _QUARTILE) if median else 0.0
        found[node] = known[key]
    return found


def _refuse_overflow(network: Network, sigma: float, iterations: int) -> None:
    longest = sum(network.duration.tolist()) * math.exp(_FARTHEST * sigma)
    if (longest + sum(network.graph.arc_lag_ns.tolist()) + network.value_ns) * iterations > MAX_AMOUNT:
        raise ProblemError("the durations are too long to be timed under jitter; check the units of the profile")


def _blocks(trials: int) -> Iterator[tuple[int, int]]:
    """Number and size of each block of trials."""
    for block, first in enumerate(range(0, trials, _BLOCK)):
        yield block, min(_BLOCK, trials - first)


class _Run:
    """Passes through all iterations of a block of trials at once.

    Parameters
    ----------
    network
        Of a timetable that attains its value.
    iterations
        How many follow each other.
    """

    def __init__(self, network: Network, iterations: int) -> None:
        self.network, self.iterations = network, iterations
        columns = [row.tolist() for row in network.rows] + [list(line) for _, line in network.links]
        self.lasts = [network.lasts(column) for column in range(len(columns))]
        self.origin = [
            min((network.start(n) for n in nodes), default=0) if network.by_period else 0 for nodes in columns
        ]
        self.holds: list[tuple[int, int, int, list[tuple[int, int]]]] = []
        for node in network.sequence:
            edges = [(edge.tail, edge.lag_ns) for edge in network.edges[node]]
            first = all(not edge.in_row for edge in network.edges[node])
            self.holds.append((node, network.column(node), int(first), edges))

    def forward(self, duration: Int64) -> tuple[Int64, Int64]:
        """Time all iterations.

        Parameters
        ----------
        duration
            Shape (iterations, N, trials).

        Returns
        -------
        By trial: what the whole run takes, and the rank whose last end says so.
        """
        here = duration.shape[2]
        ready = [np.full(here, at, dtype=np.int64) for at in self.origin]
        self._end = end = np.empty((len(self.network.edges), here), dtype=np.int64)
        # what each start waits for: 0 the rank's iteration before, k + 1 its edge k
        self._waits = np.zeros((self.iterations, len(end), here), dtype=np.int8)
        self._ends_with: list[list[Int64]] = []
        for iteration in range(self.iterations):
            for node, rank, first, edges in self.holds:
                at = ready[rank] if first else np.full(here, -1, dtype=np.int64)
                waits = self._waits[iteration, node]
                for number, (tail, lag) in enumerate(edges, 1):
                    reached = end[tail] + lag
                    later = reached > at
                    waits[later] = number
                    at = np.where(later, reached, at)
                np.add(at, duration[iteration, node], out=end[node])
            chosen = []
            for rank, lasts in enumerate(self.lasts):
                if lasts:
                    ends = end[lasts]
                    chosen.append(ends.argmax(axis=0))
                    ready[rank] = ends.max(axis=0)
                else:
                    chosen.append(np.zeros(here, dtype=np.int64))
            self._ends_with.append(chosen)
        taken = np.stack([r - at for r, at in zip(ready, self.origin, strict=True)])
        return taken.max(axis=0), taken.argmax(axis=0)

    def back(self, last: Int64) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Walk the critical chain of the last `forward` back from a rank's end in each trial.

        Yields
        ------
        Each iteration, from the last on, with shape (N, trials): what is critical.
        """
        carry = [last == rank for rank in range(len(self.lasts))]
        for iteration in reversed(range(self.iterations)):
            critical = np.zeros((len(self.network.edges), len(last)), dtype=bool)
            for rank, lasts in enumerate(self.lasts):
                for number, node in enumerate(lasts):
                    critical[node] |= carry[rank] & (self._ends_with[iteration][rank] == number)
            carry = [np.zeros(len(last), dtype=bool) for _ in carry]
            for node, rank, _, edges in reversed(self.holds):
                own = critical[node]
                if not own.any():
                    continue
                waits = self._waits[iteration, node]
                carry[rank] |= own & (waits == 0)
                for number, (tail, _) in enumerate(edges, 1):
                    critical[tail] |= own & (waits == number)
            yield iteration, critical


def _blamed(
    network: Network, critical: Int64, late: NDArray[np.float64], runs: int
) -> tuple[tuple[Blame, ...], tuple[Blame, ...]]:
    each = [
        Blame(op=network.op(node), rank=network.rank(node), critical=int(count) / runs, late_ns=float(ns) / runs)
        for node, (count, ns) in enumerate(zip(critical, late, strict=True))
        if network.transfer(node) is None
    ]
    sums: dict[tuple[Op, int], tuple[float, float]] = {}
    for one in each:
        beside = None if one.op.beside is None else Op(one.op.beside.kind, one.op.beside.stage, None)
        key = (Op(one.op.kind, one.op.stage, None, beside), one.rank)
        share, ns = sums.get(key, (0.0, 0.0))
        sums[key] = (share + one.critical, ns + one.late_ns)
    added = [Blame(op=op, rank=rank, critical=share, late_ns=ns) for (op, rank), (share, ns) in sums.items()]
    return _most_first(each), _most_first(added)


def _most_first(found: list[Blame]) -> tuple[Blame, ...]:
    return tuple(sorted(found, key=lambda one: (-one.late_ns, -one.critical)))
