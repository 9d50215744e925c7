"""The pieces of search that run in workers, as data.

A task is what a worker needs beyond the case it has been told once; `run` does it and hands out what
it finds, as it finds it. The same task gives the same results in this process and in another, with
plain kernels and with compiled ones, if steps limit it.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.catalog.closing import closed
from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.budget import STEPS_PER_DETERMINISTIC_SECOND, Budget
from zbsolve.solver.compiled import Kernels, ready_to_move
from zbsolve.solver.forms import Forms
from zbsolve.solver.kernels import Arrays, fits, makespan, period, rows_of
from zbsolve.solver.kernels import sequence_of as graph_sequence_of
from zbsolve.solver.moves import BEST, BEST_FUSED, BEST_SEQUENCE, REG, SEQUENCE, new_state
from zbsolve.solver.network import LIMIT, RANK, SHAPE, Table, build_network, end_nodes, nodes_of, order_of, sequence_of
from zbsolve.timetable import Order

__all__ = [
    "Anneal",
    "AnnealParts",
    "Bounded",
    "Case",
    "Done",
    "Find",
    "Found",
    "Length",
    "Prove",
    "Publish",
    "Rearrange",
    "Relax",
    "Repeat",
    "Rule",
    "Scan",
    "Shrink",
    "Tabu",
    "Task",
    "Tune",
    "Tuned",
    "Warm",
    "run",
]

Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]

_PUNCTUAL = 0.95
"""The part of its time that CP-SAT is given; it takes some more to notice the end."""

_PATIENCE = 2.0
"""Seconds, of the clock and of CP-SAT's own measure, for one part of an order."""

_PART_STEPS = 5_000
"""Moves that take as long as reading one such model in."""

_RHYTHM = 0.5
"""The part of the time for a steady state that CP-SAT has; the rest is for the ramps."""

_RAMPS = (0.1, 0.5, 1.0)
"""Starting temperatures for the ramps, in mean operations of a rank: the steady part is not to melt."""

_CHUNK = 2_000
"""Moves between two looks at the clock by compiled kernels; also how often the temperature falls."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a task may go on: in seconds from when it begins, or in steps."""

    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Warm:
    """Load the compiled kernels, or compile them."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A published schedule, see `zbsolve.solver.portfolio.published`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """List schedules, by plain rules or by random ones; the best `keep` of them are handed out."""

    plain: bool
    length: Length
    seed: int
    keep: int
    target_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal:
    """An annealing run from an order.

    Parameters
    ----------
    sequence, fused
        The order to begin with, as nodes of the network.
    first, ratio
        The temperature at the start as a part of the value, and at the end as a part of that.
    target_ns
        Stop at this value.
    length, seed
        Of the run.
    """

    sequence: Int32
    fused: Int8
    first: float
    ratio: float
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabu:
    """A tabu search from an order.

    Parameters
    ----------
    sequence, fused
        The order to begin with, as nodes of the network.
    slack
        How much worse the next order may be than the present one, as a part of the value.
    target_ns
        Stop at this value.
    length, seed
        Of the search.
    """

    sequence: Int32
    fused: Int8
    slack: float
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealParts:
    """Annealing of parts of an order, see `zbsolve.solver.parts`."""

    sequence: Int32
    fused: Int8
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Orders of a problem with fewer microbatches, stretched; by list schedules, or by an order with loops left out."""

    sequence: Int32
    fused: Int8
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What a list scheduler prefers: the value it gave, a plain choice of what is fused, the rule, its chance."""

    value_ns: int
    choice: int
    table: NDArray[np.int64]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Rules of the list scheduler near given ones, on so many microbatches, see `zbsolve.solver.tuning`."""

    microbatches: int
    rules: tuple[Rule, ...]
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A steady state of windows of `size` microbatches, unrolled and annealed, see `zbsolve.solver.rhythm`.

    Parameters
    ----------
    size
        Microbatches of a window.
    value_ns
        The best value known: a window that takes longer for its share is of no interest.
    target_ns
        Stop at this value.
    length, seed
        Of CP-SAT and annealing together.
    """

    size: int
    value_ns: int
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """CP-SAT on the whole problem, hinted with an order."""

    sequence: Int32
    fused: Int8
    value_ns: int
    bound_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrange:
    """CP-SAT on parts of an order, one after the other."""

    sequence: Int32
    fused: Int8
    value_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relax:
    """Better bounds by relaxations, see `zbsolve.solver.relaxation`."""

    value_ns: int
    bound: Bound
    length: Length
    seed: int


Task = Warm | Publish | Scan | Anneal | AnnealParts | Tabu | Shrink | Tune | Repeat | Prove | Rearrange | Relax


@dataclass(frozen=True, slots=True)
class Found:
    """An order, with its exact value, and what made it where the arm alone does not tell."""

    value_ns: int
    sequence: Int32
    fused: Int8
    method: str = ""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A bound proved."""

    bound: Bound


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best rules for so many microbatches."""

    microbatches: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a task: the steps it took, and whether its worker was lost."""

    steps: int = 0
    lost: bool = False


Find = Found | Bounded | Tuned | Done


@dataclass(eq=False)
class Case:
    """What all tasks of a solve share.

    Parameters
    ----------
    problem
        What is asked.
    kernels
        Plain or compiled.
    arrays
        The network in arrays, where it is built already.

    Attributes
    ----------
    network
        The same in the form that the kernels take.
    forms
        Which backwards may run fused.
    """

    problem: Problem
    kernels: Kernels
    arrays: Any = None
    network: Table = field(init=False)
    forms: Forms = field(init=False)

    def __post_init__(self) -> None:
        if self.arrays is None:
            self.arrays = build_network(self.problem)
        network: Any = self.arrays.tolist() if self.kernels.lists else self.arrays
        self.network = network
        self.forms = Forms(self.problem, self.arrays)

    @property
    def nodes(self) -> int:
        """The number of nodes of the network."""
        return int(self.arrays[SHAPE][0])

    @property
    def rank(self) -> NDArray[np.int64]:
        """The rank of each node of the network."""
        column: NDArray[np.int64] = self.arrays[RANK][: self.nodes]
        return column

    @property
    def periodic(self) -> int:
        """1 for the period, 0 for the makespan."""
        return int(self.problem.objective == "period")

    def read(self, order: Order) -> Found | None:
        """An order of the problem, timed; None if it can never finish or exceeds the memory."""
        return self.read_rows(*nodes_of(self.problem, order))

    def read_open(self, rows: Sequence[Sequence[int]], fused: Sequence[int]) -> Found | None:
        """The same for rows of forwards and gradients alone, behind which the iteration is closed."""
        if not self.problem.has_ends:
            return self.read_rows(rows, fused)
        order = order_of(self.problem, [node for row in rows for node in row], fused)
        return self.read(closed(self.problem, order))

    def read_rows(self, rows: Sequence[Sequence[int]], fused: Sequence[int]) -> Found | None:
        """The same for rows of nodes, ghosts behind their B, and by node whether it is fused."""
        sequence = sequence_of(self.arrays, rows)
        if sequence is None:
            return None
        state = new_state(self.network, sequence, fused, 0)
        value = self.kernels.load(self.network, state, self.periodic)
        if value < 0:
            return None
        return Found(int(value), np.asarray(sequence, dtype=np.int32), np.asarray(fused, dtype=np.int8))

    def unfold(self, graph: OpGraph, sequence: Any) -> tuple[Int32, Int8]:
        """Nodes of any graph of the problem as nodes of the network, ghosts behind their B, and which are fused."""
        parts, microbatches = self.problem.placement.stages * self.problem.microbatches, self.problem.microbatches
        nodes = np.asarray(sequence, dtype=np.int64)
        fused = np.zeros(self.nodes, dtype=np.int8)
        if self.problem.forward_only:
            alone = graph.stage[nodes].astype(np.int64) * microbatches + graph.microbatch[nodes]
            fused[parts:] = 1
            return (alone[:, None] + np.arange(3) * parts).ravel().astype(np.int32), fused
        once = graph.microbatch[nodes] < 0
        kind, within = (
            graph.kind[nodes].astype(np.int64),
            graph.stage[nodes].astype(np.int64) * microbatches + graph.microbatch[nodes],
        )
        whole = kind == 3
        own = np.where(whole, 1, kind) * parts + within
        ends = end_nodes(self.problem)
        own[once] = [ends[graph.op(node).kind, int(graph.stage[node]), int(graph.rank[node])] for node in nodes[once]]
        fused[own[whole]] = fused[own[whole] + parts] = 1
        twice = np.repeat(own, 1 + whole)
        twice[np.flatnonzero(np.diff(twice, prepend=-1) == 0)] += parts
        return twice.astype(np.int32), fused


def run(task: Task, case: Case, deadline: float, hand: Callable[[Find], None]) -> Done:
    """Do a task.

    Parameters
    ----------
    task
        What to do.
    case
        What all tasks share.
    deadline
        On the clock of `time.perf_counter`; the task's own length applies besides.
    hand
        Takes what it finds.
    """
    if isinstance(task, Warm):
        _warm(case)
        return Done()
    if isinstance(task, Publish):
        _publish(task, case, hand)
        return Done(1)
    seconds = task.length.seconds
    until = deadline if seconds is None else min(deadline, time.perf_counter() + seconds)
    budget = Budget(until, task.length.steps)
    if isinstance(task, Scan):
        _scan(task, case, budget, hand)
    elif isinstance(task, Anneal):
        _anneal(task, case, budget, hand)
    elif isinstance(task, AnnealParts):
        _anneal_parts(task, case, budget, hand)
    elif isinstance(task, Tabu):
        _tabu(task, case, budget, hand)
    elif isinstance(task, Shrink):
        _shrink(task, case, budget, hand)
    elif isinstance(task, Tune):
        _tune(task, case, budget, hand)
    elif isinstance(task, Repeat):
        _repeat(task, case, budget, hand)
    elif isinstance(task, Prove):
        _prove(task, case, budget, hand)
    elif isinstance(task, Rearrange):
        _rearrange(task, case, budget, hand)
    else:
        _relax(task, case, budget, hand)
    return Done(budget.spent)


def _warm(case: Case) -> None:
    """Call every kernel once, on a list schedule without a limit."""
    from zbsolve.solver.portfolio import plain_rules

    free: Any = case.arrays.copy()
    free[LIMIT] = 2**62
    if case.kernels.lists:
        free = free.tolist()
    state = new_state(free, range(case.nodes), [0] * case.nodes, 0)
    case.kernels.list_schedule(free, state, next(plain_rules(case)))
    ready = ready_to_move(case.kernels, free, state[SEQUENCE][: case.nodes], [0] * case.nodes, 0, case.periodic)
    if ready is not None:
        case.kernels.anneal_moves(free, ready, 1, 1.0, 0, 0.0, case.periodic)
        case.kernels.tabu_moves(free, ready, 1, 1, 0, case.periodic)
        case.kernels.tails(free, ready, case.periodic)


def _publish(task: Publish, case: Case, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.portfolio import published

    for method, order in published(case.problem, task.name):
        found = case.read(order)
        if found is not None:
            hand(dataclasses.replace(found, method=method))


def _scan(task: Scan, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.portfolio import plain_drafts, random_drafts

    best: list[Found] = []
    drafts = plain_drafts(case, budget) if task.plain else random_drafts(case, budget, random.Random(task.seed))
    for found in drafts:
        if not best or found.value_ns < best[0].value_ns:
            hand(found)
        if len(best) < task.keep or found.value_ns < best[-1].value_ns:
            best.append(found)
            best.sort(key=lambda f: f.value_ns)
            del best[task.keep :]
        if found.value_ns <= task.target_ns:
            break
    for found in best[1:]:
        hand(found)


def _anneal(task: Anneal, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    kernels, net, periodic = case.kernels, case.network, case.periodic
    switching = 0.15 if case.forms.matters else 0.0
    first, whole = task.first, budget.seconds_left

    def walk(state: Table, moves: int, begun: int) -> int:
        done = 1 - budget.seconds_left / whole if budget.steps is None else budget.spent / budget.steps
        temperature = first * begun * task.ratio**done
        moved: int = kernels.anneal_moves(net, state, moves, temperature, task.target_ns, switching, periodic)
        return moved

    _walk(task, case, budget, hand, walk)


def _tabu(task: Tabu, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    def walk(state: Table, moves: int, begun: int) -> int:
        slack = int(task.slack * begun)
        tried: int = case.kernels.tabu_moves(case.network, state, moves, slack, task.target_ns, case.periodic)
        return tried

    _walk(task, case, budget, hand, walk)


def _walk(
    task: Anneal | Tabu,
    case: Case,
    budget: Budget,
    hand: Callable[[Find], None],
    walk: Callable[[Table, int, int], int],
) -> None:
    """From the order of a task on, so many moves at a time; hands out whatever is better than all before."""
    kernels, net = case.kernels, case.network
    state = ready_to_move(kernels, net, task.sequence.tolist(), task.fused.tolist(), task.seed, case.periodic)
    if state is None:
        return
    told = begun = state[REG][BEST]
    chunk = 50 if kernels.lists and budget.steps is None else _CHUNK
    while not budget.over and told > task.target_ns:
        moves = chunk if budget.steps is None else min(chunk, budget.steps - budget.spent)
        budget.spend(walk(state, moves, begun))
        if state[REG][BEST] < told:
            told = state[REG][BEST]
            sequence, fused = (np.asarray(state[row][: case.nodes]) for row in (BEST_SEQUENCE, BEST_FUSED))
            hand(Found(int(told), sequence.astype(np.int32), fused.astype(np.int8)))


def _anneal_parts(task: AnnealParts, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.parts import anneal_parts

    anneal_parts(task, case, budget, hand)


def _shrink(task: Shrink, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.smaller import stretched

    for found in stretched(case, task, budget):
        hand(found)


def _tune(task: Tune, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.tuning import tune

    tune(task, case, budget, hand)


def _repeat(task: Repeat, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.rhythm import Rhythm, find_rhythm, read_beat, unroll

    fused = case.forms.flags(lambda s, j: s in case.forms.cheap)
    beat = read_beat(case.arrays, fused)
    if beat is None:
        return
    rhythms: list[Rhythm] = []
    part = budget.part(_RHYTHM)
    work = find_rhythm(
        beat,
        task.size,
        most=task.value_ns * task.size // (case.problem.microbatches * beat.unit_ns),
        seconds=_PUNCTUAL * part.seconds_left,
        deterministic=_deterministic(part),
        seed=task.seed,
        on_rhythm=rhythms.append,
    )
    budget.spend(int(work * STEPS_PER_DETERMINISTIC_SECOND))
    found = case.read_open(unroll(rhythms[-1], beat, case.problem.microbatches), fused) if rhythms else None
    if found is None:
        return
    hand(found)
    for left, first in zip(range(len(_RAMPS), 0, -1), _RAMPS, strict=True):
        _anneal(
            Anneal(
                sequence=found.sequence,
                fused=found.fused,
                first=first * case.problem.placement.ranks / case.nodes,
                ratio=1 / 30,
                target_ns=task.target_ns,
                length=Length(),
                seed=task.seed + left,
            ),
            case,
            budget.part(1 / left),
            hand,
        )


def _graph_form(task: Prove | Rearrange, case: Case) -> tuple[Arrays, list[int]]:
    """The order of a task as CP-SAT reads it."""
    order = order_of(case.problem, task.sequence.tolist(), task.fused.tolist())
    graph = OpGraph.build(case.problem, order.rows)
    arrays = Arrays.of(graph)
    sequence = graph_sequence_of(arrays, graph.by_lane(graph.encode(order)))
    assert sequence is not None
    return arrays, sequence


def _timed(case: Case, arrays: Arrays, sequence: list[int]) -> tuple[int, list[int]] | None:
    """A sequence that CP-SAT found, timed exactly and put where each node stands after what it needs."""
    again = graph_sequence_of(arrays, rows_of(arrays, sequence))
    if again is None or not fits(arrays, again):
        return None
    return (period(arrays, again)[0] if case.periodic else makespan(arrays, again)), again


def _prove(task: Prove, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.cpsat import Limits, improve

    arrays, sequence = _graph_form(task, case)

    def found(new: list[int]) -> None:
        timed = _timed(case, arrays, new)
        if timed is not None:
            hand(Found(timed[0], *case.unfold(arrays.graph, timed[1])))

    def bounded(bound_ns: int) -> None:
        if case.forms.speaks_for_all(task.fused):
            hand(Bounded(Bound(bound_ns, "CP-SAT")))

    outcome = improve(
        arrays,
        sequence,
        objective=case.problem.objective,
        value_ns=task.value_ns,
        bound_ns=task.bound_ns,
        limits=Limits(
            seconds=_PUNCTUAL * budget.seconds_left,
            deterministic=_deterministic(budget),
            workers=1,
            seed=task.seed,
        ),
        on_sequence=found,
        on_bound=bounded,
    )
    budget.spend(int(outcome.deterministic * STEPS_PER_DETERMINISTIC_SECOND))


def _rearrange(task: Rearrange, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.cpsat import Limits
    from zbsolve.solver.cpsat_window import improve_part, pick_part

    arrays, sequence = _graph_form(task, case)
    rng, value = random.Random(task.seed), task.value_ns

    def found(new: list[int]) -> None:
        nonlocal sequence, value
        timed = _timed(case, arrays, new)
        if timed is not None and timed[0] <= value:
            if timed[0] < value:
                hand(Found(timed[0], *case.unfold(arrays.graph, timed[1])))
            value, sequence = timed

    while not budget.over:
        left = _deterministic(budget)
        work = improve_part(
            arrays,
            sequence,
            pick_part(arrays, sequence, rng),
            objective=case.problem.objective,
            value_ns=value,
            limits=Limits(
                seconds=min(_PATIENCE, _PUNCTUAL * budget.seconds_left),
                deterministic=_PATIENCE if left is None else min(_PATIENCE, left),
                workers=1,
                seed=rng.getrandbits(31),
            ),
            on_sequence=found,
        )
        budget.spend(_PART_STEPS + int(work * STEPS_PER_DETERMINISTIC_SECOND))


def _relax(task: Relax, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    from zbsolve.solver.relaxation import improve_bound

    improve_bound(
        case.problem,
        incumbent_ns=task.value_ns,
        best=task.bound,
        work_limit=_deterministic(budget),
        time_limit_s=_PUNCTUAL * budget.seconds_left,
        seed=task.seed,
        on_bound=lambda bound: hand(Bounded(bound)),
    )
    budget.spend(budget.steps_left or 0)


def _deterministic(budget: Budget) -> float | None:
    """What is left in CP-SAT's measure of work; None for no limit."""
    return None if budget.steps_left is None else budget.steps_left / STEPS_PER_DETERMINISTIC_SECOND
