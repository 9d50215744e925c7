"""The line as a CP-SAT model: some ranks exactly, of the others only what orders F's and gradients.

Variables are the starts of F, B and W in units. All microbatches are alike, so each rank runs them
first in, first out; that loses nothing (see `docs/bounds.md`). Of every rank the model has

- the chain down and the chain back, with their lags;
- F's one after the other, and gradients one after the other;
- F(j + K) after the end of B(j).

Of a rank that is kept it has besides

- W after B, W's one after the other;
- no two operations at once;
- memory: where it never grows but at the start of an F, which W must be over before which F; else as
  bytes held over time.

Every timetable of the line keeps all of this, whatever is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from zbsolve.solver.line import Line, LineRank

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Built", "Question", "Starts", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be as small as possible, in units.

    Parameters
    ----------
    kind
        ``"whole"``: the value. ``"prefix"``: from the first F of the marked rank to its F number
        `microbatches`, counted from 0. ``"suffix"``: from the first F of the marked rank to the end of
        `microbatches` microbatches, on the first rank (period) or everywhere (makespan).
    microbatches
        How many there are; those before and after are left out.
    mark
        The rank on which prefixes and suffixes are counted; 0 for the whole.
    kept
        The ranks to keep exactly, as positions in the line.
    prefixes, suffixes
        Proven least answers for fewer microbatches, which hold of every stretch of them.
    least, most
        The answer is known to be, or asked to be, within these.
    only_exists
        Whether any answer within them will do, or none.
    """

    kind: Literal["whole", "prefix", "suffix"]
    microbatches: int
    kept: Collection[int]
    mark: int = 0
    prefixes: Mapping[int, int] = field(default_factory=dict)
    suffixes: Mapping[int, int] = field(default_factory=dict)
    least: int = 0
    most: int
    only_exists: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """A model and its variables.

    Parameters
    ----------
    model
        The model.
    ranks
        The starts on each rank of the line.
    answer
        What is minimised.
    begin
        When the first F of the marked rank starts.
    """

    model: cp_model.CpModel
    ranks: list[Starts]
    answer: cp_model.IntVar
    begin: int


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts of one rank; `weights` only if it is kept.

    There may be more F's than gradients: then the last ones count as in flight to the end.
    """

    cost: LineRank
    forwards: list[cp_model.IntVar]
    gradients: list[cp_model.IntVar]
    weights: list[cp_model.IntVar]

    def gradient_end(self, j: int) -> Any:
        """End of gradient number j."""
        return self.gradients[j] + self.cost.gradient

    def weight_end(self, j: int) -> Any:
        """End of W number j."""
        return self.weights[j] + self.cost.weight


def build(line: Line, question: Question) -> Built:
    """The model of a question."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    answer = model.new_int_var(question.least, question.most, "answer")
    mark = question.mark
    # before the first F of the marked rank only F's of earlier ranks need to run, at most K each
    begin = sum(r.forward * r.in_flight + r.down for r in line.ranks[:mark])
    forwards, gradients = _needed(line, question)
    ranks = [
        _rank(model, cost, forwards[s], gradients[s], begin + question.most, kept=s in question.kept)
        for s, cost in enumerate(line.ranks)
    ]
    model.add(ranks[mark].forwards[0] == begin)
    _chains(model, ranks)
    for rank in ranks:
        if rank.weights:
            _keep(model, rank, begin + question.most)
    _bring_in(model, ranks[mark], question, begin, answer)
    if question.kind != "prefix":
        _spans(model, line, ranks, question, begin, answer)
    if not question.only_exists:
        model.minimize(answer)
    return Built(model, ranks, answer, begin)


def _needed(line: Line, question: Question) -> tuple[list[int], list[int]]:
    """How many F's and how many gradients of each rank the question is about.

    A prefix ends with F number h of the marked rank. For that rank s and all before it, number h - K must be back by
    then, and so must it be on all later ranks; nothing else is waited for.
    """
    count, ranks = question.microbatches, range(len(line.ranks))
    if question.kind != "prefix":
        return [count for _ in ranks], [count for _ in ranks]
    back = [max(0, count + 1 - r.in_flight) for r in line.ranks[: question.mark + 1]]
    gradients = [max(back[: s + 1]) for s in ranks]
    return [count + 1 if s <= question.mark else gradients[s] for s in ranks], gradients


def _rank(
    model: cp_model.CpModel, cost: LineRank, forwards: int, gradients: int, horizon: int, *, kept: bool
) -> Starts:
    """Variables of one rank, and what holds of every rank by itself.

    F's and gradients of all ranks start before the horizon. W's may come later, but no later than one after the
    other once the last of those is over.
    """

    def starts(count: int, latest: int) -> list[cp_model.IntVar]:
        return [model.new_int_var(0, latest, "") for _ in range(count)]

    latest = horizon + max(cost.forward, cost.gradient) + gradients * cost.weight
    rank = Starts(
        cost, starts(forwards, horizon), starts(gradients, horizon), starts(gradients, latest) if kept else []
    )
    for before, after in itertools.pairwise(rank.forwards):
        model.add(after >= before + cost.forward)
    for before, after in itertools.pairwise(rank.gradients):
        model.add(after >= before + cost.gradient)
    for before, after in zip(rank.gradients, rank.forwards[cost.in_flight :], strict=False):
        model.add(after >= before + cost.gradient)
    return rank


def _chains(model: cp_model.CpModel, ranks: list[Starts]) -> None:
    """Down to the last rank, and back."""
    for here, after in itertools.pairwise(ranks):
        for j in range(len(here.gradients)):
            model.add(after.forwards[j] >= here.forwards[j] + here.cost.forward + here.cost.down)
            model.add(here.gradients[j] >= after.gradient_end(j) + here.cost.up)
    last = ranks[-1]
    for gradient, forward in zip(last.gradients, last.forwards, strict=False):
        model.add(gradient >= forward + last.cost.forward)


def _keep(model: cp_model.CpModel, rank: Starts, horizon: int) -> None:
    """What holds of a rank that is kept exactly."""
    cost = rank.cost
    for j, weight in enumerate(rank.weights):
        model.add(weight >= rank.gradient_end(j))
    for before, after in itertools.pairwise(rank.weights):
        model.add(after >= before + cost.weight)
    model.add_no_overlap(
        [
            model.new_fixed_size_interval_var(start, length, "")
            for starts, length in (
                (rank.forwards, cost.forward),
                (rank.gradients, cost.gradient),
                (rank.weights, cost.weight),
            )
            if length
            for start in starts
        ]
    )
    if len(rank.forwards) * max(cost.held, cost.keep) <= cost.room:
        return
    if cost.keep <= cost.held:
        _limit_at_forwards(model, rank)
    else:
        _limit_always(model, rank, horizon)


def _limit_at_forwards(model: cp_model.CpModel, rank: Starts) -> None:
    """Memory where it never grows but at the start of an F.

    Let F number j start with y gradients done. Then a = j + 1 - y microbatches are in flight, and at most
    b(a) = floor((room - a held) / keep) others may wait for W: W number y - b(a) - 1 is over. The model says so of
    every y for which F j comes before B number y. That asks no more than memory does: with y' < y gradients done
    y' - b(a') >= y - b(a), for each microbatch more in flight takes the place of at least one that waits.
    Of a B number y that a prefix leaves out nothing is known: it may have come before F j.
    """
    cost = rank.cost
    for j, forward in enumerate(rank.forwards):
        for y in range(max(0, j + 1 - cost.in_flight), j + 1):
            in_flight = j + 1 - y
            if not cost.keep:
                break
            over = y - (cost.room - in_flight * cost.held) // cost.keep - 1
            if over < 0 or over >= len(rank.weights):
                continue
            if y == j:
                model.add(forward >= rank.weight_end(over))
                continue
            if y >= len(rank.gradients):
                continue
            ahead = model.new_bool_var("")
            model.add(rank.gradients[y] >= forward + cost.forward).only_enforce_if(ahead)
            model.add(forward >= rank.gradient_end(y)).only_enforce_if(~ahead)
            model.add(forward >= rank.weight_end(over)).only_enforce_if(ahead)


def _limit_always(model: cp_model.CpModel, rank: Starts, horizon: int) -> None:
    """Memory as bytes held from start to end, at all times."""
    cost = rank.cost
    stays = min(cost.held, cost.keep)
    spans, sizes = [], []
    end_of_all = horizon + (len(rank.weights) + 1) * cost.weight + cost.gradient + cost.forward
    for j, forward in enumerate(rank.forwards):
        # a prefix leaves out B and W of the last ones, which may come at any time after F
        pieces: tuple[tuple[Any, Any, int], ...] = ((forward, forward + cost.forward, cost.held),)
        if j < len(rank.gradients):
            pieces = (
                (forward, rank.weight_end(j), stays),
                (rank.gradients[j], rank.weight_end(j), cost.keep - stays),
            )
        for start, end, size in pieces:
            if size:
                length = model.new_int_var(0, end_of_all, "")
                spans.append(model.new_interval_var(start, length, end, ""))
                sizes.append(size)
    common = math.gcd(*sizes)
    model.add_cumulative(spans, [size // common for size in sizes], cost.room // common)
    if stays:
        for before, after in zip(rank.weights, rank.forwards[cost.room // stays :], strict=False):
            model.add(after >= before + cost.weight)


def _bring_in(model: cp_model.CpModel, marked: Starts, question: Question, begin: int, answer: cp_model.IntVar) -> None:
    """What is proven of shorter stretches of microbatches, for each of them."""
    starts = marked.forwards
    for size, least in question.prefixes.items():
        for before, after in zip(starts, starts[size:], strict=False):
            model.add(after >= before + least)
    if question.kind == "prefix":
        model.add(answer >= starts[-1] - begin)
        return
    for size, least in question.suffixes.items():
        if size <= len(starts):
            model.add(answer >= starts[-size] - begin + least)


def _spans(
    model: cp_model.CpModel,
    line: Line,
    ranks: list[Starts],
    question: Question,
    begin: int,
    answer: cp_model.IntVar,
) -> None:
    """The answer is at least the span of a rank; where times were rounded, of a later one less a unit."""
    for s, rank in enumerate(ranks):
        ends = [rank.gradient_end(-1)] + ([rank.weight_end(-1)] if rank.weights else [])
        for end in (end + rank.cost.after for end in ends):
            if line.makespan or s == 0:
                model.add(answer >= end - begin)
            elif question.kind == "whole":
                model.add(answer >= end - rank.forwards[0] - (line.unit_ns > 1))
        if line.makespan:
            model.add(answer >= rank.gradient_end(-1) - begin + rank.cost.tail)
