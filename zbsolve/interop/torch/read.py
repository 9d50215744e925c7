"""torch's CSVs as timetables: what torch's own validator lets pass is refused here, with row and cell.

A *compute_comms* file is told from a *compute_only* one by what stands in it. Ranks, stages, placement and
microbatches come from the file; costs come from a profile. Two operations that torch runs together
(``OVERLAP_F_B``) are read as the two, one after the other.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Literal, NoReturn

from zbsolve.catalog.closing import closed
from zbsolve.check import violations
from zbsolve.disk import MAX_FILE_BYTES, PathLike, collection_paused, read_regular
from zbsolve.errors import FileFormatError, PlacementError
from zbsolve.interop.text import decoded, shown
from zbsolve.interop.torch.cells import COMPUTES, LETTERS, Cell, cells_of
from zbsolve.interop.torch.messages import Fault, circle, message_faults
from zbsolve.ops import Kind, Op
from zbsolve.placement import MAX_RANKS, Placement
from zbsolve.problem import MAX_OPERATIONS, Limit, Objective, Problem
from zbsolve.profile import MAX_STAGES, Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, Timetable
from zbsolve.units import counted

__all__ = ["TorchSchedule", "parse_torch_csv", "read_torch_csv"]

Layout = Literal["compute_only", "compute_comms"]

Places = dict[tuple[str, int, int], tuple[int, int]]
"""Row and cell of every operation, by torch's letter, stage and microbatch."""

_EXCLUDES = {"F": ("F",), "B": ("B", "I", "W"), "I": ("I", "B"), "W": ("W", "B")}
"""What cannot stand for the same stage and microbatch as well."""

_NEEDS = {"B": "F", "I": "F", "W": "I"}
"""What stands ahead in the row."""

MOST_ACTIONS = MAX_OPERATIONS
"""Of operations, messages and idle cells together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSchedule:
    """What a CSV of torch says.

    Parameters
    ----------
    layout
        torch's name for its kind.
    order
        The operations of each rank.
    placement
        The rank of every stage.
    microbatches
        How many there are.
    notes
        What a reader should know: what was read in another way than torch runs it, or might hang.
    """

    layout: Layout
    order: Order
    placement: Placement
    microbatches: int
    notes: tuple[str, ...]
    name: str
    places: Places

    def problem(
        self, profile: Profile, *, memory_limit: Limit | tuple[Limit, ...] = None, objective: Objective = "period"
    ) -> Problem:
        """The question that the order is an answer to, on the costs of a profile.

        Raises
        ------
        FileFormatError
            If the profile has other stages than the file.
        """
        stages = self.placement.stages
        if len(profile.stages) != stages:
            raise FileFormatError(
                self.name,
                f"has {counted(stages, 'stage')}, the profile has {len(profile.stages)}; "
                "give a profile of the stages that were scheduled",
            )
        return Problem(
            profile=profile,
            placement=self.placement,
            microbatches=self.microbatches,
            memory_limit=memory_limit,
            objective=objective,
        )

    def timetable(self, problem: Problem) -> Timetable:
        """The order, timed.

        Raises
        ------
        FileFormatError
            If the ranks wait for each other in a circle, with a cell of it.
        """
        order = closed(problem, self.order)  # torch's files say nothing of reductions and optimizers
        found = [v for v in violations(problem, order) if v.code != "memory"]
        if found:
            said = [op for op in found[0].ops if op.kind in LETTERS]
            at = min((place for op in said if (place := self.places.get(_key(op)))), default=None)
            where = None if at is None else _where(*at)
            raise FileFormatError(self.name, f"can never finish: {found[0].message}", where)
        return simulate(problem, order)


def read_torch_csv(
    path: PathLike,
    profile: Profile,
    *,
    memory_limit: Limit | tuple[Limit, ...] = None,
    objective: Objective = "period",
) -> Timetable:
    """Read a schedule that torch has dumped, or that was written for it, as a timetable on the costs of a profile.

    Parameters
    ----------
    path
        A CSV of `_PipelineScheduleRuntime`: compute_only or compute_comms, told apart by content.
    profile
        Costs of its stages.
    memory_limit, objective
        Of the problem that the timetable carries.

    Raises
    ------
    FileFormatError
        If it is no such file or torch would hang on it or compute something else, with row and cell.
    """
    schedule = parse_torch_csv(read_regular(path), path)
    return schedule.timetable(schedule.problem(profile, memory_limit=memory_limit, objective=objective))


def parse_torch_csv(data: bytes, name: object) -> TorchSchedule:
    """Read the content of a CSV; `name` is how messages call it.

    Raises
    ------
    FileFormatError
        As `read_torch_csv`.
    """
    with collection_paused():
        return _Reader(name).read(data)


def _where(row: int, place: int) -> str:
    return f"row {row + 1}, cell {place + 1}"


def _key(op: Op) -> tuple[str, int, int]:
    return LETTERS[op.kind], op.stage, -1 if op.microbatch is None else op.microbatch


class _Reader:
    """Reads one file; keeps where everything stands."""

    def __init__(self, name: object) -> None:
        self._name = name
        self._rows: list[list[tuple[int, Cell]]] = []
        self._rank_of: dict[int, tuple[int, int]] = {}
        self._places: Places = {}
        self._overlapped = 0

    def _refuse(self, message: str, row: int, place: int | None = None) -> NoReturn:
        where = f"row {row + 1}" if place is None else _where(row, place)
        raise FileFormatError(self._name, message, where)

    def read(self, data: bytes) -> TorchSchedule:
        if len(data) > MAX_FILE_BYTES:
            raise FileFormatError(self._name, f"is larger than {MAX_FILE_BYTES // 1024**2} MiB; is it the right file?")
        self._cells(decoded(data, self._name))
        with_comms = any(cell.kind is None for row in self._rows for _, cell in row)
        microbatches = self._complete()
        rank_of = [self._rank_of[stage][0] for stage in range(len(self._rank_of))]
        notes = []
        if self._overlapped:
            notes.append(
                f"{counted(self._overlapped, 'pair')} of operations that torch runs together "
                f"{'is' if self._overlapped == 1 else 'are'} read as two, one after the other"
            )
        if with_comms:
            for fault in message_faults(self._rows, rank_of):
                self._refuse_fault(fault)
            hang = circle(self._rows, rank_of)
            if hang is not None:
                notes.append(f"{_where(hang.row, hang.place)}: {hang.message}, as over NCCL; torch may hang")
        order = Order(
            tuple(
                tuple(Op(cell.kind, cell.stage, cell.microbatch) for _, cell in row if cell.kind is not None)
                for row in self._rows
            )
        )
        self._losses(order, len(rank_of), notes)
        try:
            placement = Placement.custom(rank_of)
        except PlacementError as error:
            raise FileFormatError(self._name, str(error)) from None
        return TorchSchedule(
            layout="compute_comms" if with_comms else "compute_only",
            order=order,
            placement=placement,
            microbatches=microbatches,
            notes=tuple(notes),
            name=str(self._name),
            places=self._places,
        )

    def _cells(self, text: str) -> None:
        if text.count(",") > MOST_ACTIONS:  # before they are all taken apart
            raise FileFormatError(self._name, f"there are more than {MOST_ACTIONS} cells; is it the right file?")
        text = text.rstrip()  # some editors leave blank lines at the end
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        actions = 0
        try:
            for row, cells in enumerate(reader):
                if row >= MAX_RANKS:
                    self._refuse(f"there is a row for each rank, at most {MAX_RANKS}", row)
                made: list[tuple[int, Cell]] = []
                for place, cell in enumerate(cells):
                    found = cells_of(cell)
                    if found is None:
                        self._refuse(f"{shown(cell)} is no action of torch, such as 0F3, 1I0 or 2RECV_B1", row, place)
                    actions += max(1, len(found))
                    if actions > MOST_ACTIONS:
                        self._refuse(f"there are more than {MOST_ACTIONS} cells; is it the right file?", row, place)
                    self._overlapped += len(found) == 2
                    made += [(place, action) for action in found]
                    for action in found:
                        self._take(action, row, place)
                if not made:
                    self._refuse("there is nothing in this row: each is a rank's, and a rank without work is none", row)
                self._rows.append(made)
        except csv.Error as error:
            self._refuse(f"cannot be read as CSV: {error}", len(self._rows))
        if not self._rows:
            raise FileFormatError(self._name, "is empty")

    def _take(self, cell: Cell, row: int, place: int) -> None:
        """Note an action, and refuse an operation that comes twice, too early, or on a second rank."""
        if cell.stage >= MAX_STAGES:
            self._refuse(f"{cell}: a pipeline has at most {MAX_STAGES} stages, numbered from 0", row, place)
        rank = self._rank_of.setdefault(cell.stage, (row, place))[0]
        if rank != row:
            self._refuse(
                f"{cell}: stage {cell.stage} is rank {rank}'s, see {_where(*self._rank_of[cell.stage])}", row, place
            )
        action, stage, microbatch = cell.action, cell.stage, cell.microbatch
        if action not in COMPUTES:
            return
        for other in _EXCLUDES[action]:
            before = self._places.get((other, stage, microbatch))
            if before is not None:
                self._refuse(f"{cell}: that is done already, see {_where(*before)}", row, place)
        needed = _NEEDS.get(action)
        if needed is not None and (needed, stage, microbatch) not in self._places:
            self._refuse(f"{cell} comes before {Cell(stage, needed, microbatch)}", row, place)
        self._places[action, stage, microbatch] = row, place

    def _complete(self) -> int:
        """The number of microbatches; every stage does every one of them, all the way."""
        done: dict[int, dict[str, set[int]]] = {}
        for action, stage, microbatch in self._places:
            sets = done.setdefault(stage, {letter: set() for letter in "FIW"})
            for letter in ("I", "W") if action == "B" else (action,):
                sets[letter].add(microbatch)
        if not done:
            raise FileFormatError(self._name, "has no operation at all")
        stages = 1 + max(self._rank_of)
        microbatches = 1 + max(max(sets["F"]) for sets in done.values())
        for stage in range(stages):
            if stage not in done:
                what = "no operation in any row" if stage not in self._rank_of else "no operation"
                raise FileFormatError(self._name, f"stage {stage} has {what}, but there are stages up to {stages - 1}")
            for letter, microbatches_done in done[stage].items():
                if len(microbatches_done) < microbatches:
                    missing = next(j for j in range(microbatches) if j not in microbatches_done)
                    what = counted(microbatches, COMPUTES[letter].value.replace("_", " "))
                    told = f"{Cell(stage, letter, missing)} is missing: stage {stage} has {len(microbatches_done)}"
                    self._refuse(f"{told} of {what}", self._rank_of[stage][0])
        return microbatches

    def _refuse_fault(self, fault: Fault) -> NoReturn:
        self._refuse(fault.message, fault.row, fault.place)

    def _losses(self, order: Order, stages: int, notes: list[str]) -> None:
        """Torch gives its n-th loss to microbatch n: a note where the last stage's forwards come otherwise."""
        forwards = [op for row in order.rows for op in row if op.kind is Kind.FORWARD and op.stage == stages - 1]
        for place, op in enumerate(forwards):
            if op.microbatch != place:
                at = _where(*self._places[_key(op)])
                cell = Cell(op.stage, "F", op.microbatch or 0)
                notes.append(
                    f"{at}: {cell} is forward {place} of the last stage, and torch gives it the loss of {place}"
                )
                return
