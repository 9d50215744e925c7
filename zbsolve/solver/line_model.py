"""The line as a CP-SAT model: some ranks exactly, of the others only what orders F's and gradients.

Variables are the starts of F, B and W in units. All microbatches of a route are alike, so each stage runs
them first in, first out; that loses nothing (see `docs/bounds.md`). Of every stage the model has

- the chain down and the chain back, with their lags;
- F's one after the other, and gradients one after the other;
- F(j + K) after the end of B(j).

Of the stages of a rank that is kept it has besides

- W after B, W's one after the other;
- no two operations at once, whichever of its stages they are of;
- memory: with one stage, where it never grows but at the start of an F, which W must be over before which F; else as
  bytes held over time.

Every timetable of the line keeps all of this, whatever is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from zbsolve.solver.line import Line, LineStage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Built", "Question", "Starts", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be as small as possible, in units.

    Parameters
    ----------
    kind
        ``"whole"``: the value. ``"prefix"``: from the first F of the marked stage to its F number
        `microbatches`, counted from 0. ``"suffix"``: from the first F of the marked stage to the end of
        `microbatches` microbatches, on the first rank (period) or everywhere (makespan). With several routes only
        the whole is asked.
    microbatches
        How many there are; those before and after are left out.
    mark
        The stage at which prefixes and suffixes are counted, on the first route; 0 for the whole.
    kept
        The stages to keep exactly, as positions in the line.
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
    stages
        The starts of each stage of the line.
    answer
        What is minimised.
    begin
        When the first F of the marked stage starts.
    """

    model: cp_model.CpModel
    stages: list[Starts]
    answer: cp_model.IntVar
    begin: int


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts of one stage; `weights` only if it is kept.

    There may be more F's than gradients: then the last ones count as in flight to the end.
    """

    cost: LineStage
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
    begin = _begin(line, question)
    horizon = begin + question.most * (1 if line.routes == 1 else 2)
    forwards, gradients = _needed(line, question)
    after = _weights_after(line, gradients)
    stages = [
        _stage(model, cost, forwards[s], gradients[s], horizon, after[cost.rank] if s in question.kept else None)
        for s, cost in enumerate(line.stages)
    ]
    if line.routes == 1 or not line.makespan:
        model.add(stages[mark].forwards[0] == begin)
    _chains(model, stages)
    for stage in stages:
        if stage.weights:
            _weights_in_turn(model, stage)
    for rank in sorted({stage.rank for stage in line.stages}):
        own = [stage for stage in stages if stage.weights and stage.cost.rank == rank]
        if own:
            _keep(model, own, horizon)
    _bring_in(model, stages[mark], question, begin, answer)
    if question.kind != "prefix":
        _spans(model, line, stages, question, begin, answer)
    if not question.only_exists:
        model.minimize(answer)
    return Built(model, stages, answer, begin)


def _begin(line: Line, question: Question) -> int:
    """When the first F of the marked stage starts, so that nothing starts below 0.

    With one route only F's of earlier stages need to run before, at most K each. With several, and the period: the
    first route comes by every rank, so every rank has an operation after that F, and no operation a period before it.
    Operations of another route lie within the span of its first rank, which starts before the last operation of the
    first route does: so within twice the period behind.
    """
    if line.routes > 1:
        return 0 if line.makespan else question.most
    return sum(r.forward * r.in_flight + r.down for r in line.stages[: question.mark])


def _needed(line: Line, question: Question) -> tuple[list[int], list[int]]:
    """How many F's and how many gradients of each stage the question is about.

    A prefix ends with F number h of the marked stage. For that stage s and all before it, number h - K must be back by
    then, and so must it be at all later stages; nothing else is waited for.
    """
    count, ranks = question.microbatches, range(len(line.stages))
    if question.kind == "whole" and line.routes > 1:
        visitors = [stage.microbatches for stage in line.stages]
        return visitors, visitors
    if question.kind != "prefix":
        return [count for _ in ranks], [count for _ in ranks]
    back = [max(0, count + 1 - r.in_flight) for r in line.stages[: question.mark + 1]]
    gradients = [max(back[: s + 1]) for s in ranks]
    return [count + 1 if s <= question.mark else gradients[s] for s in ranks], gradients


def _weights_after(line: Line, gradients: Sequence[int]) -> dict[int, int]:
    """How long all W's of a rank take behind its last F or gradient, by rank."""
    after: dict[int, int] = {}
    for stage, count in zip(line.stages, gradients, strict=True):
        after[stage.rank] = after.get(stage.rank, 0) + count * stage.weight
    return {
        rank: time + max(max(s.forward, s.gradient) for s in line.stages if s.rank == rank)
        for rank, time in after.items()
    }


def _stage(
    model: cp_model.CpModel, cost: LineStage, forwards: int, gradients: int, horizon: int, tail: int | None
) -> Starts:
    """Variables of one stage, and what holds of every stage by itself.

    F's and gradients of all stages start before the horizon. W's, if there are any, may come later, but no later
    than one after the other once the last of those is over.
    """

    def starts(count: int, latest: int) -> list[cp_model.IntVar]:
        return [model.new_int_var(0, latest, "") for _ in range(count)]

    weights = [] if tail is None else starts(gradients, horizon + tail)
    rank = Starts(cost, starts(forwards, horizon), starts(gradients, horizon), weights)
    for before, after in itertools.pairwise(rank.forwards):
        model.add(after >= before + cost.forward)
    for before, after in itertools.pairwise(rank.gradients):
        model.add(after >= before + cost.gradient)
    for before, after in zip(rank.gradients, rank.forwards[cost.in_flight :], strict=False):
        model.add(after >= before + cost.gradient)
    return rank


def _chains(model: cp_model.CpModel, ranks: list[Starts]) -> None:
    """Down to the last stage of each route, and back."""
    for here, after in itertools.pairwise(ranks):
        if here.cost.route != after.cost.route:
            _turn(model, here)
            continue
        for j in range(len(here.gradients)):
            model.add(after.forwards[j] >= here.forwards[j] + here.cost.forward + here.cost.down)
            model.add(here.gradients[j] >= after.gradient_end(j) + here.cost.up)
    _turn(model, ranks[-1])


def _turn(model: cp_model.CpModel, last: Starts) -> None:
    """At the last stage of a route the way back begins."""
    for gradient, forward in zip(last.gradients, last.forwards, strict=False):
        model.add(gradient >= forward + last.cost.forward)


def _weights_in_turn(model: cp_model.CpModel, stage: Starts) -> None:
    """Each W behind its gradient, and behind the W before it."""
    for j, weight in enumerate(stage.weights):
        model.add(weight >= stage.gradient_end(j))
    for before, after in itertools.pairwise(stage.weights):
        model.add(after >= before + stage.cost.weight)


def _keep(model: cp_model.CpModel, stages: Sequence[Starts], horizon: int) -> None:
    """What holds of a rank that is kept exactly, of all its stages together."""
    model.add_no_overlap(
        [
            model.new_fixed_size_interval_var(start, length, "")
            for stage in stages
            for starts, length in (
                (stage.forwards, stage.cost.forward),
                (stage.gradients, stage.cost.gradient),
                (stage.weights, stage.cost.weight),
            )
            if length
            for start in starts
        ]
    )
    room = stages[0].cost.room
    if sum(len(stage.forwards) * max(stage.cost.held, stage.cost.keep) for stage in stages) <= room:
        return
    if len(stages) == 1 and stages[0].cost.keep <= stages[0].cost.held:
        _limit_at_forwards(model, stages[0])
    else:
        _limit_always(model, stages, horizon)


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


def _limit_always(model: cp_model.CpModel, stages: Sequence[Starts], horizon: int) -> None:
    """Memory of a rank as bytes held from start to end, at all times."""
    spans, sizes = [], []
    room = stages[0].cost.room
    longest = max(stage.cost.gradient + stage.cost.forward + stage.cost.weight for stage in stages)
    end_of_all = horizon + longest + sum(len(stage.weights) * stage.cost.weight for stage in stages)
    for stage in stages:
        cost = stage.cost
        stays = min(cost.held, cost.keep)
        for j, forward in enumerate(stage.forwards):
            # a prefix leaves out B and W of the last ones, which may come at any time after F
            pieces: tuple[tuple[Any, Any, int], ...] = ((forward, forward + cost.forward, cost.held),)
            if j < len(stage.gradients):
                pieces = (
                    (forward, stage.weight_end(j), stays),
                    (forward, stage.gradient_end(j), cost.held - stays),
                    (stage.gradients[j], stage.weight_end(j), cost.keep - stays),
                )
            for start, end, size in pieces:
                if size:
                    length = model.new_int_var(0, end_of_all, "")
                    spans.append(model.new_interval_var(start, length, end, ""))
                    sizes.append(size)
        if stays:
            for before, after in zip(stage.weights, stage.forwards[room // stays :], strict=False):
                model.add(after >= before + cost.weight)
    common = math.gcd(*sizes)
    model.add_cumulative(spans, [size // common for size in sizes], room // common)


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
    stages: list[Starts],
    question: Question,
    begin: int,
    answer: cp_model.IntVar,
) -> None:
    """The answer is at least the span of a rank; where times were rounded, of one not counted from 0 less a unit."""
    first_rank = line.stages[0].rank
    firsts: dict[int, list[Starts]] = {}
    for stage in stages:
        there = firsts.setdefault(stage.cost.rank, [])
        if all(other.cost.route != stage.cost.route for other in there):
            there.append(stage)
    for stage in stages:
        ends = [stage.gradient_end(-1)] + ([stage.weight_end(-1)] if stage.weights else [])
        for end in (end + stage.cost.after for end in ends):
            if line.makespan:
                model.add(answer >= end - begin)
                continue
            if stage.cost.rank == first_rank:
                model.add(answer >= end - begin)
            if question.kind == "whole":
                for first in firsts[stage.cost.rank]:
                    if first is not stages[0]:
                        model.add(answer >= end - first.forwards[0] - (line.unit_ns > 1))
        if line.makespan:
            model.add(answer >= stage.gradient_end(-1) - begin + stage.cost.tail)
