"""The optimizer in the pipeline: its neighbours, its place in the row, and starting over where it was wrong.

::

    row of a rank    F0 F1 F2 | validate | F3 B0 ...  W | sum replicas, step_begin
                     `-------'                            next row ->
                     run again if some rank's step was wrong

What a rank has run before its validation is only forwards, of stages before the last, that need only
what other ranks run before theirs (`zbsolve.executor.optimizer.validation_points`). To start over, a
rank takes what others sent it before their validation and it has not taken, throws everything
away, puts random states and buffers back, and runs the same functions again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.desk import StageWork
from zbsolve.executor.optimizer import PostValidatedOptimizer, validation_points
from zbsolve.executor.optimizer.verdict import Words
from zbsolve.executor.transports.protocol import Endpoint
from zbsolve.lowering import Do, Lowered
from zbsolve.ops import Kind, Op
from zbsolve.timetable import Timetable

__all__ = ["Neighbours", "WarmUp", "chain_of", "early_forwards", "optimizer_of", "settle_together"]

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def chain_of(timetable: Timetable) -> tuple[int, ...]:
    """The ranks in the order in which their rows end: so the partial states never wait."""
    rows = [[timed for timed in row if timed.op.microbatch is not None] for row in timetable.rows]
    ends = [row[-1].end_ns if row else 0 for row in rows]
    return tuple(sorted(range(len(ends)), key=lambda rank: (ends[rank], rank)))


def early_forwards(timetable: Timetable, chain: Sequence[int]) -> tuple[int, ...]:
    """How many operations each rank runs before it validates the step before."""
    last = timetable.problem.placement.stages - 1
    rows = []
    for row in timetable.order.rows:
        leading: list[Op] = []
        for op in row:
            if op.kind is not Kind.FORWARD or op.stage == last or op.beside is not None:
                break
            leading.append(op)
        rows.append(leading)
    wanted = [0] * len(rows)
    for position, rank in enumerate(chain):
        wanted[rank] = len(rows) - 1 - position

    def needs(op: Op) -> Op | None:
        return Op(Kind.FORWARD, op.stage - 1, op.microbatch) if op.stage else None

    return validation_points(rows, wanted, needs)


def optimizer_of(
    make: MakeOptimizer,
    endpoint: Endpoint,
    stages: Mapping[int, StageWork],
    chain: Sequence[int],
    counted_elsewhere: Sequence[int],
    replicated: Sequence[int],
    tag: int,
    **rules: object,
) -> PostValidatedOptimizer:
    """The optimizer of a rank's parameters, with its place in the chain.

    Raises
    ------
    InvalidInput
        If what should make it does not.
    """
    unique: dict[int, torch.nn.Parameter] = {}
    replicas: dict[torch.Tensor, bool] = {}
    for number in sorted(stages):
        for parameter in stages[number].module.parameters():
            if parameter.requires_grad:
                unique.setdefault(id(parameter), parameter)
                if number in replicated:
                    replicas[parameter] = number not in counted_elsewhere
    # a rank whose parameters are all frozen still passes the states on
    parameters = list(unique.values())
    optimizer = make(parameters) if parameters else torch.optim.SGD([torch.nn.Parameter(torch.zeros(0))], lr=0.0)
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise InvalidInput(
            f"optimizer returned {'nothing' if optimizer is None else f'a {type(optimizer).__name__}'} for the "
            f"parameters of rank {endpoint.rank}; it has to return a torch.optim.Optimizer"
        )
    position = list(chain).index(endpoint.rank)
    near = [chain[p] for p in (position - 1, position + 1) if 0 <= p < len(chain)]
    endpoint.befriend(near)
    return PostValidatedOptimizer(
        optimizer,
        rank=position,
        ranks=len(chain),
        channel=Neighbours(endpoint, chain, tag),
        replicas=replicas,
        **rules,  # type: ignore[arg-type]
    )


def settle_together(optimizers: Sequence[PostValidatedOptimizer]) -> bool:
    """After a failure, with all ranks at hand: validate what waits, so that all have made the same updates.

    Returns
    -------
    False if they have not: some had begun an update that others have not.
    """
    if len({optimizer.begun for optimizer in optimizers}) > 1 or any(o.under_way for o in optimizers):
        return False
    step = optimizers[0].begun - 1 if optimizers else -1
    told = next((o.full for o in optimizers if o.full is not None and o.full.step == step), None)
    for optimizer in optimizers:
        if optimizer.unsettled and told is None:
            return False
        if optimizer.pending and told is not None:
            optimizer.settle(told)
    return True


class Neighbours:
    """States to and from the neighbours in the chain, over the transport.

    Parameters
    ----------
    endpoint
        Of the rank.
    chain
        The rank at each position.
    tag
        What the states are told under. It is the pipeline's own: a full state waits from one step to the
        next, and another pipeline on the same transport must not take it for its own.
    """

    def __init__(self, endpoint: Endpoint, chain: Sequence[int], tag: int) -> None:
        self._endpoint = endpoint
        self._chain = chain
        self._tag = tag
        self._like = [torch.zeros(5, dtype=torch.float64)]

    def send(self, to: int, words: Words) -> None:
        """Hand five numbers to a neighbouring position and return at once."""
        self._endpoint.tell(self._chain[to], [torch.tensor(words, dtype=torch.float64)], self._tag)

    def receive(self, source: int) -> Words:
        """Wait for the next five numbers from a neighbouring position."""
        (words,) = self._endpoint.hear(self._chain[source], self._like, self._tag)
        return tuple(words.tolist())


class WarmUp:
    """Where a rank's row is cut for the validation, and what starting over has to take first.

    Parameters
    ----------
    lowered
        Of all ranks.
    early
        Operations of each rank before its validation.
    rank
        Whose.

    Attributes
    ----------
    first, rest
        Places of the actions before and after the validation. A receive that was posted early for
        a message that is sent after the sender's validation is posted after this one.
    void
        Messages that the others have sent before their validation and this rank has not taken;
        those posted already come with False.
    unsent
        Messages this rank has sent and not completed.
    """

    def __init__(self, lowered: Lowered, early: Sequence[int], rank: int) -> None:
        heads = [_head(row, count) for row, count in zip(lowered.rows, early, strict=True)]
        sent = {a.message for row, head in zip(lowered.rows, heads, strict=True) for a in row[:head] if a.do is Do.SEND}
        row, head = lowered.rows[rank], heads[rank]
        late = [i for i in range(head) if row[i].do is Do.POST and row[i].message not in sent]
        self.first = [i for i in range(head) if i not in set(late)]
        self.rest = [*late, *range(head, len(row))]
        mine = {(row[i].do, row[i].message) for i in self.first}
        order = {a.message: i for other in lowered.rows for i, a in enumerate(other) if a.do is Do.SEND}
        self.void = [
            (m, (Do.POST, m) not in mine)
            for m in sorted(sent, key=order.__getitem__)
            if lowered.messages[m].receiver == rank and (Do.WAIT, m) not in mine
        ]
        self.unsent = [m for do, m in mine if do is Do.SEND and (Do.COMPLETE, m) not in mine]


def _head(row: Sequence[object], count: int) -> int:
    """The number of actions up to the operation after `count`, its own waits and posts not included."""
    seen = 0
    end = 0
    for i, action in enumerate(row):
        do = action.do  # type: ignore[attr-defined]
        if do is Do.COMPUTE:
            if seen == count:
                break
            seen += 1
            end = i + 1
        elif do in (Do.SEND, Do.HAND_OVER, Do.RELEASE) and end == i:
            end = i + 1
    return end
