"""An optimizer that needs no barrier: step on the prefix, validate in the next warm-up.

Clipping by the global norm and skipping steps that overflow need a number from every rank before
any rank may step. Waiting for it is a barrier, and a barrier gives back the bubble that a zero-
bubble timetable has removed. After "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, section on
bypassing optimizer synchronizations), states travel instead while the ranks work::

    rank 0   ...W | combine, step |  F0   F1   F2   F3 | validate |  B0 ...
                    | prefix                             ^
                    v                                    | full
    rank 1    ...W  | combine, step |  F0   F1   F2 | validate |  F3  B0 ...
                      | prefix                        ^
                      v                               | full
    rank 2      ...W  | combine, step |  F0   F1 | validate |  F2  B0 ...
                        | prefix                   ^
                        v                          | full
    rank 3        ...W  | combine = full: step right |  F0  B0 ...

A state is five numbers (`State`): number of the step, overflow flag, sum of squares, whether a
gradient is float64, and the first position whose prefix looked bad. Messages per step: one prefix
from each rank to the next, one full state from each rank to the one before; sends never wait.

One rank's states and what moves it (`PostValidatedOptimizer`)::

                          step_begin
    IDLE ---------------------+----------------------------------------------------.
     ^                        |                                                     |
     |     prefix good        |  prefix over the limit     prefix overflowed        | last rank, or
     |     snapshot, step     |  keep gradients            (skip is certain)        | synchronous
     |          v             |         v                        v                  v
     |      STEPPED           |       HELD                    SKIPPING           DECIDED
     |          |                       |                        |          (skip / clip, step / step)
     |          | validate: full state arrives and is passed on  |                  |
     |          |                       |                        |                  |
     |   kept:    -              kept:    step                   -                  -
     |   clipped: undo,          clipped: clip, step
     |            clip, step     skipped: -
     |   skipped: undo
     '----------'-----------------------'------------------------'------------------'

All ranks agree. The last rank combines each rank's part once; its result is passed back unchanged
as float64, so every rank holds the same bits and applies the same pure functions of them:
`Rule.verdict`, `clip_coefficient`, `wrong_ranks`, `LossScale.after`. Nothing else enters a decision.

Weights equal the synchronous rule's. By induction over steps: let parameters, optimizer state and
gradients before a step be the rule's. (1) DECIDED runs the rule itself. (2) HELD and SKIPPING touch
nothing until the full state is there and then run the rule on the same gradients. (3) STEPPED and
*kept*: the rule multiplies by a coefficient of exactly 1.0 or not at all, and steps; so did the
rank. (4) STEPPED and *skipped*: a snapshot puts back the bits of before. (5) STEPPED and *clipped*:
a snapshot puts back the bits of before, settings of the groups are those of the step (`Settings`),
the gradients are the same, so clip and step give the rule's bits. With inverse arithmetic (4) and
(5) hold up to rounding: what is put back is within the bound that is reported. Gradients of the
next step are the rule's if no backward uses a stale forward, which is the runtime's part below.

What waits. A prefix may have to wait for the rank before. In the order of stages this costs nothing:
the next iteration's first forward of a rank needs that of the rank before, which steps first. Nor
does it in the order in which rows end. Where the first stage's rank ends last, as in 1F1B, that
order runs against the stages: the full state is known there first and reaches every rank ahead of
the first activation, so all validate before their first forward and nothing ever runs again.

What the runtime must do
------------------------
1. Call `step_begin` once this rank's last weight gradient of the iteration (and the reduction over
   replicas, if any) is done. It consumes the gradients: ``.grad`` is None afterwards, and the tensors
   may be kept by reference until validation, so their memory is not to be written again before.
2. Call `validate` at a fixed place in the row of the next iteration: before its first backward, and
   after as many forwards as fill the time until the full state can be there. The places together
   must be closed: what a rank runs before its validation needs only forwards that other ranks run
   before theirs (`validation_points` finds them). Then no two ranks wait for each other. On a linear
   placement with positions in the order of stages, ``ranks - 1 - rank`` forwards each is closed,
   and costs no waiting where forwards take equally long.
3. If `Validation.rerun` is true, which every rank sees for the same step without a further message,
   each rank does the following at its validation, with *stale* as `stale_stages` of the route says
   (from the first stage that lies on one of `Validation.wrong_ranks`; with positions in the order of
   stages that is every stage, as rank 0 is wrong then: the new iteration starts over).
   - Drop what the forwards of stale stages saved for backward. Set random states (dropout) and
     buffers that forwards change (batch statistics) back to where they were before them.
   - Where the stage before is stale too, drop the inputs that came from it, and take and throw away
     those still to come: the sender's row says how many it sends before its validation, the own row
     how many were taken. Inputs that came from a stage that is not stale are right and are kept.
   - Run the forwards of stale stages that stand before the validation again, in row order, and send
     their outputs again. Channels are in step afterwards.
   A rank knows nothing of a wrong step before its validation and needs to know nothing: whatever it
   sent is void by the same rule at the receiver.
   If `rerun` is false nothing runs again, whatever the verdict: also when the step was skipped and
   no rank had taken it.
4. Loss scale: multiply the loss by `loss_scale` as it is after `validate`.
5. Before a checkpoint, an evaluation or the end, call `flush` on every rank.
6. Learning-rate schedulers may step any time after `step_begin`: a repair uses the settings of its
   step and then puts theirs back. A scheduler that should not count skipped steps is called after
   `validate`.

Memory. Between `step_begin` and `validate`, `held_bytes` reports: STEPPED holds the snapshot, and the
gradients if clipping is on (a skip needs none); with inverse arithmetic the gradients alone; HELD
the gradients; the others nothing. Where nothing is checked there are no messages and nothing is held.

Groups of devices. Where a rank is a group (tensor or data parallelism), each device has a chain of its
own with its peers of the other ranks. Gradients that are DTensors count once as a whole, whatever
their placements; for other sharded gradients `within_rank` adds the group's parts. Plain gradients
are the same on all devices of a group and need nothing.

Limits. An optimizer that draws random numbers inside its step draws again in a repair, and step
hooks run again. The host waits once a step for this rank's own device, to read its sum of squares.
"""

from __future__ import annotations

from zbsolve.executor.optimizer.channel import Channel, QueueChannel, queue_channels
from zbsolve.executor.optimizer.held import HeldBytes
from zbsolve.executor.optimizer.inverse import UndoError
from zbsolve.executor.optimizer.lossscale import LossScale
from zbsolve.executor.optimizer.postvalidated import PostValidatedOptimizer
from zbsolve.executor.optimizer.repair import synchronous_step
from zbsolve.executor.optimizer.validation import Validation
from zbsolve.executor.optimizer.verdict import State, Verdict, wrong_ranks
from zbsolve.executor.optimizer.warmup import stale_stages, validation_points

__all__ = [
    "Channel",
    "HeldBytes",
    "LossScale",
    "PostValidatedOptimizer",
    "QueueChannel",
    "State",
    "UndoError",
    "Validation",
    "Verdict",
    "queue_channels",
    "stale_stages",
    "synchronous_step",
    "validation_points",
    "wrong_ranks",
]
