"""What stands where, and what needs what: the one table that the rules read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbsolve.errors import InvalidInput
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.profile import StageCost
from zbsolve.timetable import Order, TimedOp, Timetable
from zbsolve.trace import Trace

__all__ = ["Entry", "Sheet", "number", "show", "some"]

_F, _B, _W, _BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD
_C = Kind.RECOMPUTE
_U, _X, _L = Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD
_R, _O = Kind.REDUCE_GRADIENT, Kind.OPTIMIZER
_DOES = {_BW: (_B, _W)} | {kind: (kind,) for kind in (_F, _B, _W, _C, _U, _X, _L, _R, _O)}
_BESIDE = {_R: 1, _U: 2, _L: 3}

LONGEST_LIST = 12
"""A message names no more things than this."""


@dataclass(slots=True, eq=False)
class Entry:
    """An operation where it stands.

    Parameters
    ----------
    op
        The operation.
    rank, place
        In whose row, and where in it, from 0.
    cell
        Stage x microbatches + microbatch; of what is done once an iteration, behind all these,
        rank x stages + stage; -1 if the problem has no such operation.
    timed
        Its planned times, if there are any.
    clocked
        Whether these times can be reckoned with: whole numbers from 0 on.
    needs
        What must have ended before it starts; what is missing is not among it.
    handed
        For each of these the cell whose output, or the gradient of it, comes over from there; -1 for nothing.
    halves
        What it does, operation by operation, each with its cell: two of a pair.
    """

    op: Op
    rank: int
    place: int
    cell: int
    timed: TimedOp | None
    clocked: bool
    needs: tuple[Entry, ...] = ()
    handed: tuple[int, ...] = ()
    halves: tuple[tuple[Op, int], ...] = ()

    def __str__(self) -> str:
        return f"{show(self.op)} on rank {self.rank}"

    @property
    def beside(self) -> int:
        """What of its rank runs it: 0 what computes; 1 the network, 2 and 3 the copies to host memory and back."""
        return _BESIDE.get(self.op.kind, 0) if type(self.op.kind) is Kind else 0

    @property
    def start(self) -> int:
        """Planned, in ns; for clocked entries only."""
        assert self.timed is not None
        return self.timed.start_ns

    @property
    def end(self) -> int:
        """Planned, in ns; for clocked entries only."""
        assert self.timed is not None
        return self.timed.end_ns


class Sheet:
    """All entries, row by row and by the part that they do.

    Attributes
    ----------
    rows
        The entries as they stand.
    known
        Those of operations that the problem has, row after row.
    doer
        For F, B and W (F alone in a problem of forwards only) and each cell the entry that does it,
        None if there is none.
    reruns
        By cell the entry that computes its forward again, None where the forward keeps all that it has.
    moves
        By kind (offload, release, reload) and cell the entry that does it, None where nothing is moved away.
    ends
        The same for what is done once an iteration, by kind and cell.
    again
        The parts done more than once, with all the entries that do them.
    """

    def __init__(self, problem: Problem, rows: Sequence[Sequence[Op | TimedOp]]) -> None:
        self.problem = problem
        self.ranks = problem.placement.ranks
        self.stages = problem.placement.stages
        self.microbatches = problem.microbatches
        self.rows = [[self._entry(rank, *item) for item in enumerate(row)] for rank, row in enumerate(rows)]
        self.known = [entry for row in self.rows for entry in row if entry.cell >= 0]
        cells = self.stages * self.microbatches
        parts = (_F,) if problem.forward_only else (_F, _B, _W)
        self.doer: dict[Kind, list[Entry | None]] = {part: [None] * cells for part in parts}
        self.reruns: list[Entry | None] = [None] * cells
        self.moves: dict[Kind, list[Entry | None]] = {kind: [None] * cells for kind in (_U, _X, _L)}
        self.ends: dict[tuple[Kind, int], Entry | None] = {
            (kind, self._end_cell(rank, stage)): None
            for kind in (_R, _O)
            for stage in range(self.stages)
            if self._ends_with(kind, stage)
            for rank in self._holders(stage)
        }
        self.again: dict[tuple[Kind, int], list[Entry]] = {}
        for entry in self.known:
            for op, cell in entry.halves:
                for part in _DOES[op.kind]:
                    self._enter(part, cell, entry)
        for entry in self.known:
            needs = [
                (need, handed)
                for op, cell in entry.halves
                for need, handed in self._needs(op, cell)
                if need is not None
            ]
            entry.needs = tuple(need for need, _ in needs)
            entry.handed = tuple(handed for _, handed in needs)

    @classmethod
    def of(cls, problem: Problem, x: object) -> Sheet:
        """The sheet of an order, of a timetable, or of the order of a trace.

        Raises
        ------
        InvalidInput
            If `x` is none of them.
        """
        if isinstance(x, Trace):
            return cls(problem, x.order.rows)
        if not isinstance(x, Order | Timetable):
            hint = "; give its .timetable" if hasattr(x, "timetable") else ""
            raise InvalidInput(f"an order, a timetable or a trace can be judged, but not a {type(x).__name__}{hint}")
        return cls(problem, x.rows)

    def _entry(self, rank: int, place: int, item: Op | TimedOp) -> Entry:
        op, timed, clocked = (item.op, item, False) if isinstance(item, TimedOp) else (item, None, False)
        if timed is not None:
            clocked = all(type(at) is int and at >= 0 for at in (timed.start_ns, timed.end_ns))
        halves = self._halves(op, rank)
        return Entry(op, rank, place, halves[0][1], timed, clocked, halves=halves)

    def _halves(self, op: Op, rank: int) -> tuple[tuple[Op, int], ...]:
        """An operation, or the two of a pair, with their cells: -1 for all if it is none that the problem can have."""
        beside = op.beside
        if beside is None:
            return ((op, self._cell(op, rank)),)
        if op.kind is _F and type(beside) is Op and beside.beside is None and beside.kind in (_B, _BW):
            halves = Op(op.kind, op.stage, op.microbatch), beside
            cells = [self._cell(half, rank) for half in halves]
            if min(cells) >= 0 and op.microbatch != beside.microbatch:
                return tuple(zip(halves, cells, strict=True))
        return ((op, -1),)

    def _cell(self, op: Op, rank: int) -> int:
        # exact types: True equals 1, but is no stage
        if type(op.kind) is Kind and op.kind in (_R, _O):
            if type(op.stage) is not int or op.microbatch is not None or not 0 <= op.stage < self.stages:
                return -1
            if not self._ends_with(op.kind, op.stage):
                return -1
            holders = self._holders(op.stage)
            return self._end_cell(rank if rank in holders else min(holders), op.stage)
        if type(op.kind) is not Kind or type(op.stage) is not int or type(op.microbatch) is not int:
            return -1
        if self.problem.forward_only and op.kind is not _F:
            return -1
        if not (0 <= op.stage < self.stages and 0 <= op.microbatch < self.microbatches):
            return -1
        return op.stage * self.microbatches + op.microbatch

    def _ends_with(self, kind: Kind, stage: int) -> bool:
        """Whether each iteration ends with a reduction, or an optimizer, of the stage."""
        cost = self.problem.profile.stages[stage]
        if self.problem.forward_only or not self.problem.ends:
            return False
        return bool(cost.grad_reduce_ns or (cost.optimizer_ns and kind is _O))

    def _holders(self, stage: int) -> set[int]:
        return {route[stage] for route in self.problem.placement.routes}

    def _end_cell(self, rank: int, stage: int) -> int:
        return self.stages * self.microbatches + rank * self.stages + stage

    def _enter(self, part: Kind, cell: int, entry: Entry) -> None:
        others = self.reruns if part is _C else self.moves.get(part) or self.doer.get(part, [])
        other = self.ends[part, cell] if part in (_R, _O) else others[cell]
        if other is not None:
            self.again.setdefault((part, cell), [other]).append(entry)
            # of several, the one that others wait for is the first that stands in the right row
            if self.home(cell) == other.rank or self.home(cell) != entry.rank:
                return
        if part in (_R, _O):
            self.ends[part, cell] = entry
        else:
            others[cell] = entry

    def _needs(self, op: Op, cell: int) -> Iterator[tuple[Entry | None, int]]:
        """What one operation needs, each with the cell whose output or gradient is handed over, or -1."""
        kind = op.kind
        if kind is _F:
            if op.stage > 0:
                yield self.doer[_F][cell - self.microbatches], cell - self.microbatches
            if self._slice(cell) > 0:  # what the slices before it left on this stage
                yield self.doer[_F][cell - 1], -1
        elif kind is _W:
            yield self.doer[_B][cell], -1
        elif kind is _C:
            yield self.doer[_F][cell], -1
        elif kind in (_U, _X, _L):
            yield self.doer[_F][cell] if kind is _U else self.moves[_U if kind is _X else _X][cell], -1
        elif kind is _O and (_R, cell) in self.ends:
            yield self.ends[_R, cell], -1
        elif kind in (_R, _O):
            first = op.stage * self.microbatches
            yield from ((weight, -1) for weight in self.doer[_W][first : first + self.microbatches])
        else:
            yield self.doer[_F][cell], -1
            yield self.reruns[cell], -1
            yield self.moves[_L][cell], -1
            if op.stage < self.stages - 1:
                yield self.doer[_B][cell + self.microbatches], cell
            if self._slice(cell) < self.problem.slices - 1:  # its share of the gradients of the slices behind it
                yield self.doer[_B][cell + 1], -1

    def _slice(self, cell: int) -> int:
        """Which slice of its sequence the microbatch of a cell is."""
        return cell % self.microbatches % self.problem.slices

    def home(self, cell: int) -> int:
        """The rank on which the operations of a cell belong."""
        if cell >= self.stages * self.microbatches:
            return (cell - self.stages * self.microbatches) // self.stages
        stage, microbatch = divmod(cell, self.microbatches)
        route_of = self.problem.route_of
        assert route_of is not None
        return self.problem.placement.routes[route_of[microbatch]][stage]

    def cost(self, cell: int) -> StageCost:
        """What the operations of a cell cost."""
        if cell >= self.stages * self.microbatches:
            rank, stage = divmod(cell - self.stages * self.microbatches, self.stages)
            return self.problem.cost(stage, None, rank=rank)
        return self.problem.cost(*divmod(cell, self.microbatches))

    def op(self, part: Kind, cell: int) -> Op:
        """The part of a cell as an operation."""
        if part in (_R, _O):
            return Op(part, (cell - self.stages * self.microbatches) % self.stages, None)
        return Op(part, *divmod(cell, self.microbatches))


def show(op: Op) -> str:
    """An operation in words, whatever its numbers are."""
    if op.beside is not None:
        beside = op.beside
        told = show(beside) if isinstance(beside, Op) and beside.beside is None else number(beside)
        return f"{show(Op(op.kind, op.stage, op.microbatch))} with {told}"
    if type(op.kind) is Kind and op.kind in (_R, _O) and op.microbatch is None:
        return f"{op.kind.value.replace('_', ' ')} of stage {number(op.stage)}"
    letter = op.kind.letter if type(op.kind) is Kind else f"({number(op.kind)}) "
    return f"{letter}{'' if op.microbatch is None else number(op.microbatch)} of stage {number(op.stage)}"


def number(value: object) -> str:
    """A number in digits; one of very many is described, since Python refuses to print it."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"({'-' if value < 0 else ''}a number of {value.bit_length()} bits)"
    text = str(value)
    return text if len(text) <= 70 else text[:67] + "..."


def some(items: Sequence[str]) -> str:
    """The first few of many things."""
    more = f" and {len(items) - LONGEST_LIST} more" if len(items) > LONGEST_LIST else ""
    return ", ".join(items[:LONGEST_LIST]) + more
