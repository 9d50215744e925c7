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
(5) hold up to the bound that is reported. Gradients of the next step are the rule's if no backward
uses a stale forward, which is the runtime's part:

What the runtime must do
------------------------
1. Call `step_begin` once this rank's last weight gradient of the iteration (and the reduction over
   replicas, if any) is done. It consumes the gradients: ``.grad`` is None afterwards, and the tensors
   may be kept by reference until validation, so their memory is not to be written again before.
2. Call `validate` at a fixed place in the row of the next iteration: before its first backward,
   after as many forwards as fill the time until the full state can be there; on the last rank at
   once. The row orders, the data dependences and "validate of rank r+1 before validate of rank r"
   together must have no cycle: what rank r+1 runs before its validate may only need forwards that
   rank r runs before its own. On a linear placement with ``ranks`` positions, rank r after
   ``ranks - 1 - r`` forwards is right and costs no waiting where forwards are equal.
3. If `Validation.rerun` is true, which every rank sees in the same step without a further message,
   run again every forward of the new iteration that ran before validation on a stale stage
   (`stale_stages`: from the first stage of its route that lies on one of `Validation.wrong_ranks`).
   Where positions follow the stages, rank 0 is among the wrong ones, so that is every forward run
   so far: *the new iteration starts over*. Until it has validated, no rank can know; hence
   - what was saved for backward by those forwards is dropped,
   - activations that they sent have arrived or will: the receiver takes and throws away exactly as
     many messages as the sender's row sends before its validate (both know the rows), then
     receives the new ones, so channels stay in step,
   - a rank that has already used such an activation before its own validate drops that forward too,
     by the same rule, as it lies downstream,
   - random states (dropout) and buffers changed by a forward (batch statistics) are set back to
     where they were before the forward ran first.
   Forwards before the first wrong stage keep: their weights and inputs were right.
   If `rerun` is false nothing happened, whatever the verdict: also when a step was skipped and no
   rank had stepped.
4. Loss scale: multiply the loss by `loss_scale` as it is after `validate`.
5. Before a checkpoint, an evaluation or the end, call `flush` on every rank.
6. Learning-rate schedulers may step any time after `step_begin`: a repair uses the settings of its
   step and then puts theirs back. A scheduler that should not count skipped steps is called after
   `validate`.

Memory. Between `step_begin` and `validate`, `held_bytes` reports: STEPPED holds the snapshot, and the
gradients if clipping is on (a skip needs none); with inverse arithmetic the gradients alone; HELD
the gradients; the others nothing. Where nothing is checked there are no messages and nothing is held.

Limits. An optimizer that draws random numbers inside its step draws again in a repair, and step
hooks run again. The host waits once a step for this rank's own device, to read its sum of squares.
"""

from __future__ import annotations

from zbsolve.executor.optimizer.channel import Channel, QueueChannel, queue_channels
from zbsolve.executor.optimizer.held import HeldBytes
from zbsolve.executor.optimizer.inverse import UndoError
from zbsolve.executor.optimizer.lossscale import LossScale
from zbsolve.executor.optimizer.postvalidated import PostValidatedOptimizer, Validation
from zbsolve.executor.optimizer.repair import synchronous_step
from zbsolve.executor.optimizer.verdict import State, Verdict, stale_stages, wrong_ranks

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
    "wrong_ranks",
]
