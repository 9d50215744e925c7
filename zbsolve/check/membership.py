"""Rules about what stands in the rows: every part exactly once, each where it belongs."""

from __future__ import annotations

from collections.abc import Iterator

from zbsolve.check.sheet import Sheet, number, show, some
from zbsolve.ops import Kind, Op
from zbsolve.timetable import Violation

__all__ = [
    "duplicate_parts",
    "kinds_not_allowed",
    "misplaced_operations",
    "missing_parts",
    "needless_moves",
    "number_of_rows",
    "unknown_operations",
]

_CHOICE = {
    Kind.BACKWARD_INPUT: "split",
    Kind.BACKWARD_WEIGHT: "split",
    Kind.BACKWARD: "fused",
    Kind.RECOMPUTE: "recompute",
    Kind.OFFLOAD: "offload",
    Kind.RELEASE: "offload",
    Kind.RELOAD: "offload",
}
_TO_DO = {"recompute": "to recompute forwards", "offload": "to offload activations"}


def number_of_rows(sheet: Sheet) -> Iterator[Violation]:
    """There is one row a rank."""
    if len(sheet.rows) != sheet.ranks:
        yield Violation("rows", f"the problem has {sheet.ranks} ranks, but there are {len(sheet.rows)} rows")


def unknown_operations(sheet: Sheet) -> Iterator[Violation]:
    """Every operation is one of the problem's."""
    forwards = " and runs forwards only" if sheet.problem.forward_only else ""
    for row in sheet.rows:
        for entry in row:
            if entry.cell < 0:
                yield Violation(
                    "unknown",
                    f"{entry} (place {entry.place}) is no operation of the problem, which has stages "
                    f"0 to {sheet.stages - 1} and microbatches 0 to {sheet.microbatches - 1}{forwards}; "
                    f"it has {_why(sheet, entry.op)}",
                    (entry.op,),
                )


def _why(sheet: Sheet, op: Op) -> str:
    if op.beside is not None:
        return "two operations together that are not a forward and a backward of it, of two microbatches"
    if type(op.kind) is not Kind or (sheet.problem.forward_only and op.kind is not Kind.FORWARD):
        return f"the kind {number(op.kind)}"
    if op.kind.of_iteration:
        return _why_no_end(sheet, op)
    if op.microbatch is None:
        return "no microbatch"
    for name, value in (("stage", op.stage), ("microbatch", op.microbatch)):
        if type(value) is not int:
            return f"a {name} of type {type(value).__name__}, which must be an int"
    return f"stage {number(op.stage)} and microbatch {number(op.microbatch)}"


def _why_no_end(sheet: Sheet, op: Op) -> str:
    if op.microbatch is not None:
        return "a microbatch, though it is done once an iteration"
    if type(op.stage) is not int:
        return f"a stage of type {type(op.stage).__name__}, which must be an int"
    if not 0 <= op.stage < sheet.stages:
        return f"stage {number(op.stage)}"
    if sheet.problem.forward_only or not sheet.problem.ends:
        return f"the kind {op.kind}"
    return f"the kind {op.kind}, which takes no time by the profile of stage {op.stage}"


def kinds_not_allowed(sheet: Sheet) -> Iterator[Violation]:
    """Backwards are split, or fused, and forwards computed again or moved away only where that may be chosen."""
    refused = {kind: word for kind, word in _CHOICE.items() if word not in sheet.problem.allow}
    for entry in sheet.known:
        for op, _ in entry.halves:
            word = refused.get(op.kind)
            if word is not None:
                what = _TO_DO.get(word, f"{word} backwards")
                yield Violation("not_allowed", f"{entry}: the problem does not allow {what}", (entry.op,))
        if len(entry.halves) > 1 and "paired" not in sheet.problem.allow:
            yield Violation("not_allowed", f"{entry}: the problem does not allow paired operations", (entry.op,))


def misplaced_operations(sheet: Sheet) -> Iterator[Violation]:
    """Every operation stands in the row of the rank that holds its stage on its microbatch's route."""
    for entry in sheet.known:
        for op, cell in entry.halves:
            home = sheet.home(cell)
            if home != entry.rank:
                what = entry if len(entry.halves) == 1 else f"{show(op)} in {entry}"
                yield Violation("misplaced", f"{what} (place {entry.place}) belongs on rank {home}", (entry.op,))


def missing_parts(sheet: Sheet) -> Iterator[Violation]:
    """Every part is done."""
    for part, doers in sheet.doer.items():
        for cell, doer in enumerate(doers):
            if doer is None:
                yield _missing(sheet, part, cell)
    for (part, cell), doer in sheet.ends.items():
        if doer is None:
            yield _missing(sheet, part, cell)
    for cell, three in enumerate(zip(*sheet.moves.values(), strict=True)):
        if any(three):
            yield from (
                _missing(sheet, kind, cell) for kind, entry in zip(sheet.moves, three, strict=True) if not entry
            )


def needless_moves(sheet: Sheet) -> Iterator[Violation]:
    """Nothing is both moved to host memory and computed again."""
    for rerun, away in zip(sheet.reruns, sheet.moves[Kind.OFFLOAD], strict=True):
        if rerun is not None and away is not None:
            yield Violation(
                "needless",
                f"{rerun} (place {rerun.place}) computes again what {show(away.op)} (place {away.place}) moves away; "
                "one of them is enough",
                (away.op, rerun.op),
            )


def _missing(sheet: Sheet, part: Kind, cell: int) -> Violation:
    op = sheet.op(part, cell)
    return Violation("missing", f"nothing does {op}, which belongs on rank {sheet.home(cell)}", (op,))


def duplicate_parts(sheet: Sheet) -> Iterator[Violation]:
    """No part is done more than once."""
    for (part, cell), entries in sheet.again.items():
        doers = some([f"{entry} (place {entry.place})" for entry in entries])
        yield Violation(
            "duplicate",
            f"{sheet.op(part, cell)} is done {len(entries)} times, by {doers}",
            tuple(entry.op for entry in entries),
        )
