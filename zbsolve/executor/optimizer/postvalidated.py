"""The optimizer of one rank: step at once on the prefix, hear the full state later, undo and repair.

The protocol is in the package's docstring; here is one rank's side of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer.channel import Channel
from zbsolve.executor.optimizer.gradients import local_state, parameters_of, scale_gradients
from zbsolve.executor.optimizer.held import HeldBytes
from zbsolve.executor.optimizer.inverse import InverseUndo, UndoError, refuse_unless_invertible
from zbsolve.executor.optimizer.kept import Keep, KeptGradients
from zbsolve.executor.optimizer.lossscale import LossScale
from zbsolve.executor.optimizer.repair import apply_verdict
from zbsolve.executor.optimizer.settings import Settings
from zbsolve.executor.optimizer.snapshot import Snapshot
from zbsolve.executor.optimizer.validation import Validation
from zbsolve.executor.optimizer.verdict import Rule, State, Verdict, total_norm, wrong_ranks

__all__ = ["PostValidatedOptimizer"]


@dataclass(slots=True)
class _Pending:
    """A step between `step_begin` and `validate`."""

    step: int
    stepped: bool = False
    gradients: KeptGradients | None = None
    before: Settings | None = None
    after: Settings | None = None
    undo: Snapshot | InverseUndo | None = None
    done: Validation | None = None


class PostValidatedOptimizer:
    """Any optimizer, with global clipping and overflow checks that never wait for all ranks.

    Parameters
    ----------
    optimizer
        Of this rank's parameters. Everything that reads or sets it (learning-rate schedulers, ...)
        keeps using it directly; only its `step` and `zero_grad` are called through this class.
    rank, ranks
        Position in the chain along which states travel, and its length. The package's docstring says
        which orders cost no waiting.
    channel
        To the positions before and after; not used where ``ranks`` is 1 or nothing is checked.
    max_grad_norm
        Limit of the global L2 norm, as `torch.nn.utils.clip_grad_norm_`; None for no clipping.
    check_overflow
        Skip steps with infinite or NaN gradients. Needed for a loss scale.
    undo
        ``snapshot`` (exact; holds a copy of parameters and state until validation) or ``inverse``
        (holds the gradients only; not exact, its error is bounded and reported).
    snapshot_device
        None to keep snapshots where the parameters are; ``cpu`` for (pinned) host memory.
    loss_scale
        Scale of the loss, which gradients are divided by first; None for none.
    replicas
        Parameters that other ranks hold too (tied weights, replicated stages), whose gradients
        the ranks have already summed: True where this rank counts them in the norm, False elsewhere.
    within_rank
        Called with this rank's part before it is combined, where a rank is a group of devices:
        returns the group's part (its members' overflow flags or-ed, sums of squares added).
    synchronous
        Wait for the full state in `step_begin`: a barrier, nothing to undo.
    keep_gradients
        ``reference`` to keep gradients for a repair as they are, ``copy`` to copy them, because the
        optimizer writes into them. The default decides by the optimizer: copies for those from outside
        `torch.optim`, with step hooks, and for SGD's foreach flavour with Nesterov momentum.

    Raises
    ------
    InvalidInput
        For arguments that do not fit together, with what to use.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        rank: int = 0,
        ranks: int = 1,
        channel: Channel | None = None,
        max_grad_norm: float | None = None,
        check_overflow: bool = False,
        undo: Literal["snapshot", "inverse"] = "snapshot",
        snapshot_device: torch.device | str | None = None,
        loss_scale: LossScale | None = None,
        replicas: Mapping[torch.Tensor, bool] | None = None,
        within_rank: Callable[[State], State] | None = None,
        synchronous: bool = False,
        keep_gradients: Keep | None = None,
    ) -> None:
        if not 0 <= rank < ranks:
            raise InvalidInput(f"rank must be from 0 to {ranks - 1}, not {rank}")
        if undo not in ("snapshot", "inverse"):
            raise InvalidInput(f"undo must be 'snapshot' or 'inverse', not {undo!r}")
        if keep_gradients not in (None, "reference", "copy"):
            raise InvalidInput(f"keep_gradients must be 'reference', 'copy' or None, not {keep_gradients!r}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidInput("LBFGS evaluates the loss inside its step, which a pipeline cannot run there")
        if loss_scale is not None and not check_overflow:
            raise InvalidInput("a loss scale is set by overflows: pass check_overflow=True with it")
        self.rule = Rule(max_grad_norm=max_grad_norm, check_overflow=check_overflow)
        if ranks > 1 and not self.rule.off and channel is None:
            raise InvalidInput(
                f"{ranks} ranks need a channel between neighbours; in one process, queue_channels(ranks)"
            )
        self.optimizer = optimizer
        self._rank = rank
        self._ranks = ranks
        self._channel = channel
        self._inverse = undo == "inverse"
        self._device = None if snapshot_device is None else torch.device(snapshot_device)
        self._scale = loss_scale
        self._uncounted = _uncounted(optimizer, replicas or {})
        self._within_rank = within_rank
        self._synchronous = synchronous
        self._keep = keep_gradients
        self._step = 0
        self._pending: _Pending | None = None
        self._full: State | None = None
        self._under_way = False
        if self._inverse:
            refuse_unless_invertible(optimizer)
            if replicas:
                raise InvalidInput(
                    "undo by inverse arithmetic is not exact, so replicas of a parameter would drift apart: "
                    "use undo='snapshot'"
                )

    @property
    def pending(self) -> bool:
        """A step waits for its validation."""
        return self._pending is not None

    @property
    def unsettled(self) -> bool:
        """A step waits for its validation, and that takes a message; the same on every rank between iterations."""
        return self.pending and not (self.rule.off or self._synchronous or self._ranks == 1)

    @property
    def begun(self) -> int:
        """How many steps have begun."""
        return self._step

    def settle(self, full: State) -> None:
        """Validate the step that waits, by a full state that another rank was told: no message is needed.

        Parameters
        ----------
        full
            Of that step.
        """
        pending = self._pending
        if pending is not None and pending.done is None:
            self._resolve(pending, full)
        self._pending = None

    def forget(self) -> None:
        """Drop a step that waits for its validation, as before `load_state_dict` puts everything back."""
        self._pending, self._full, self._under_way = None, None, False

    @property
    def under_way(self) -> bool:
        """Inside `step_begin`; after a failure, that it did not come to its end."""
        return self._under_way

    @property
    def full(self) -> State | None:
        """The last full state that this rank has heard."""
        return self._full

    @property
    def loss_scale(self) -> float:
        """What the loss is to be multiplied by; right for the next iteration once validated."""
        return 1.0 if self._scale is None else self._scale.scale

    def step_begin(self) -> None:
        """After this rank's last weight gradient: combine, pass on, and step at once if all looks good.

        The gradients are taken over: ``.grad`` of every parameter is None afterwards.

        Raises
        ------
        RunError
            If the step before was not validated, or the rank before is at another step.
        """
        if self._pending is not None:
            raise RunError(
                f"rank {self._rank}: step {self._step - 1} was not validated; call validate() before step_begin()"
            )
        self._under_way = True
        self._begin(self._step)
        self._under_way = False

    def _begin(self, number: int) -> None:
        parameters = parameters_of(self.optimizer)
        if self.rule.off:
            self.optimizer.step()
            self._begun(_Pending(number, done=self._validation(number, None, Verdict.KEPT)))
            _take(parameters)
            return
        if self._scale is not None:
            scale_gradients(parameters, self._scale.inverse)
        own = local_state(parameters, number, self._uncounted)
        if self._within_rank is not None:
            own = self._within_rank(own)
        prefix = self.rule.combine(self._receive(self._rank - 1, number), own, self._rank)
        last = self._rank == self._ranks - 1
        if not last:
            self._send(self._rank + 1, prefix)
        pending = _Pending(number)
        self._begun(pending)
        if last:
            if self._rank > 0:
                self._send(self._rank - 1, prefix)
            self._decided(pending, prefix)
        elif self._synchronous:
            self._decided(pending, self._receive_full(number))
        elif prefix.first_bad is None:
            self._step_at_once(pending, parameters, own)
        elif self.rule.verdict(prefix) is not Verdict.SKIPPED:
            pending.gradients = KeptGradients(self.optimizer, parameters, self._keep)
            pending.before = pending.after = Settings(self.optimizer)
        _take(parameters)

    def validate(self) -> Validation | None:
        """During the next warm-up: hear the full state, undo and repair if the step was wrong.

        Where it has to stand in the row, and what must run again after it, is in the package's
        docstring. Without a step to validate it does nothing.

        Returns
        -------
        What became of the step, or None if none was waiting.
        """
        pending = self._pending
        if pending is None:
            return None
        if pending.done is None:
            self._resolve(pending, self._receive_full(pending.step))
        self._pending = None
        return pending.done

    def flush(self) -> Validation | None:
        """At the end of training, and before `state_dict`: validate now. Every rank has to call it."""
        return self.validate()

    def zero_grad(self) -> None:
        """Drop the gradients; those that a repair may need are kept elsewhere."""
        self.optimizer.zero_grad(set_to_none=True)

    def held_bytes(self) -> HeldBytes:
        """Memory held now for a step that waits for its validation."""
        pending = self._pending
        if pending is None:
            return HeldBytes()
        gradients = 0 if pending.gradients is None else pending.gradients.nbytes
        if pending.undo is None:
            return HeldBytes(gradients=gradients)
        undo = pending.undo
        return HeldBytes(
            parameters=undo.parameter_bytes, state=undo.state_bytes, gradients=gradients, host=undo.host_bytes
        )

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, the loss scale and the number of the next step.

        Raises
        ------
        RunError
            If a step waits for its validation: what stands in the optimizer may yet be undone.
        """
        self._refuse_pending("state_dict")
        scale = None if self._scale is None else self._scale.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "loss_scale": scale, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, with this object's rules.

        Raises
        ------
        RunError
            If a step waits for its validation.
        InvalidInput
            If one has a loss scale and the other has not.
        """
        self._refuse_pending("load_state_dict")
        scale = state["loss_scale"]
        if (scale is None) != (self._scale is None):
            has, lacks = ("this optimizer", "the state") if scale is None else ("the state", "this optimizer")
            raise InvalidInput(f"{has} has a loss scale and {lacks} has none: build the optimizer as when it was saved")
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scale is not None:
            self._scale = self._scale.loaded(scale)
        self._step = int(state["step"])
        self._full = None

    def _refuse_pending(self, call: str) -> None:
        if self._pending is not None:
            raise RunError(
                f"rank {self._rank}: step {self._pending.step} waits for its validation, so {call} would see weights "
                "that may yet be undone; call flush() on every rank first"
            )

    def _begun(self, pending: _Pending) -> None:
        self._pending = pending
        self._step += 1

    def _step_at_once(self, pending: _Pending, parameters: list[torch.Tensor], own: State) -> None:
        inverse = self._inverse and InverseUndo.holds(self.optimizer, own.square_sum)
        # without clipping a wrong step is skipped, for which a snapshot is enough
        if inverse or self.rule.max_grad_norm is not None:
            pending.gradients = KeptGradients(self.optimizer, parameters, self._keep)
        pending.before = Settings(self.optimizer)
        if inverse and pending.gradients is not None:
            pending.undo = InverseUndo(self.optimizer, pending.gradients.of)
        else:
            pending.undo = Snapshot(self.optimizer, self._device)
        self.optimizer.step()
        if pending.gradients is not None:
            pending.gradients.refuse_written()
        pending.stepped = True
        pending.after = Settings(self.optimizer)

    def _decided(self, pending: _Pending, full: State) -> None:
        """The full state is known while the gradients are still in place: no undo, no repair."""
        self._full = full
        verdict = self.rule.verdict(full)
        apply_verdict(self.optimizer, verdict, full, self.rule)
        pending.done = self._validation(pending.step, full, verdict)

    def _receive_full(self, number: int) -> State:
        """The full state from the position after; passed on before anything is done with it."""
        full = self._receive(self._rank + 1, number)
        assert full is not None
        if self._rank > 0:
            self._send(self._rank - 1, full)
        return full

    def _resolve(self, pending: _Pending, full: State) -> None:
        self._full = full
        verdict = self.rule.verdict(full)
        changed = self._rank in self._wrong(full, verdict)
        error = self._repair(pending, full, verdict) if changed else None
        pending.gradients = pending.undo = None
        undone = changed and pending.stepped
        pending.done = replace(
            self._validation(pending.step, full, verdict), undone=undone, weights_changed=changed, undo_error=error
        )

    def _repair(self, pending: _Pending, full: State, verdict: Verdict) -> UndoError | None:
        assert pending.before is not None
        assert pending.after is not None
        now = Settings(self.optimizer)
        pending.before.put_back(self.optimizer)
        error = pending.undo.restore() if pending.undo is not None else None
        if verdict is not Verdict.SKIPPED and pending.gradients is not None:
            # gradients of the next iteration may have begun to gather
            others = {p: p.grad for p in parameters_of(self.optimizer)}
            for parameter in others:
                parameter.grad = pending.gradients.of.get(parameter)
            apply_verdict(self.optimizer, verdict, full, self.rule)
            for parameter, gradient in others.items():
                parameter.grad = gradient
        pending.after.set_changes(self.optimizer, now)
        return error

    def _validation(self, number: int, full: State | None, verdict: Verdict) -> Validation:
        if full is not None and self._scale is not None:
            self._scale = self._scale.after(full.overflow)
        return Validation(
            step=number,
            verdict=verdict,
            undone=False,
            weights_changed=False,
            wrong_ranks=range(0) if full is None else self._wrong(full, verdict),
            norm=None if full is None else float(total_norm(full)),
            overflow=None if full is None else full.overflow,
            loss_scale=self.loss_scale,
            undo_error=None,
        )

    def _wrong(self, full: State, verdict: Verdict) -> range:
        # in the synchronous mode nobody steps before it knows
        return range(0) if self._synchronous else wrong_ranks(full, verdict, self._ranks)

    def _send(self, to: int, state: State) -> None:
        assert self._channel is not None
        self._channel.send(to, state.pack())

    def _receive(self, source: int, number: int) -> State | None:
        if source < 0:
            return None
        assert self._channel is not None
        state = State.unpack(self._channel.receive(source))
        if state.step != number:
            raise RunError(
                f"rank {self._rank} is at optimizer step {number}, rank {source} at {state.step}: every rank has to "
                "call step_begin and validate once an iteration, and to load the same checkpoint"
            )
        return state


def _take(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _uncounted(optimizer: torch.optim.Optimizer, replicas: Mapping[torch.Tensor, bool]) -> tuple[torch.Tensor, ...]:
    own = {id(p) for p in parameters_of(optimizer)}
    for parameter in replicas:
        if id(parameter) not in own:
            raise InvalidInput(f"a replica of shape {tuple(parameter.shape)} is no parameter of this rank's optimizer")
    return tuple(parameter for parameter, counts in replicas.items() if not counts)
