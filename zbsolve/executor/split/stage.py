"""A stage whose backward can be done in two halves, at different times.

::

    time     --->   F0   F1   B0   F2   W0   B1   B2   W2   W1 ...

    F   forward           outputs; autograd keeps what B needs
    B   backward_input    one plain autograd backward; split modules queue what W needs
    W   backward_weight   runs the queue into ``param.grad``

Any number of microbatches are in flight at once, each with its own graph and its own queue, and
nothing is shared between stages: different stages run in different threads at once. No graph is
walked, and none is retained: after B only the queue is left, after W nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.nn.parameter import UninitializedParameter

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.again import DRAWING, Checkpoint, as_before, nothing_saved
from zbsolve.executor.split.aside import GradientsAside
from zbsolve.executor.split.away import Away
from zbsolve.executor.split.engine import any_autocast, plain_precision, run_backward
from zbsolve.executor.split.entrance import enter
from zbsolve.executor.split.flight import Flight
from zbsolve.executor.split.held import HeldBytes, Storages, Watch, storages
from zbsolve.executor.split.inflight import held_by
from zbsolve.executor.split.install import SplitForwards
from zbsolve.executor.split.learned import Learned
from zbsolve.executor.split.moving import MovesAway
from zbsolve.executor.split.report import SplitReport
from zbsolve.executor.split.shared import StageShare
from zbsolve.executor.split.waiting import WeightQueue

__all__ = ["SplitStage"]


class SplitStage(MovesAway):
    """A module prepared for F, B and W.

    Parameters
    ----------
    module
        The stage. Its class, hooks and state_dict stay as they are; in between it can be called as usual.
    name
        For messages.
    keep_whole
        Names of submodules that are not to be split.
    norms_wait
        Whether norms leave the gradients of scale and bias to W, too. By default B computes them, because to keep
        a norm's input and output gradient for W takes far more memory, and reading them again more time.
    early
        Whether gradients that B computes all the same (of norms, and of what falls back) are added to ``.grad`` in
        B. By default they wait for W, each in the size of its parameter, so that ``.grad`` has whole microbatches.
    watch
        Whether to note all that lives, for `held_bytes`; slows the stage down.

    Raises
    ------
    InvalidInput
        If `keep_whole` names what is not there.

    Notes
    -----
    Gradients end in ``param.grad`` when W (or the fused backward) of their microbatch runs, added in
    the order of these calls. They are bitwise those of autograd in the same order; only a parameter with three or
    more uses in one microbatch, some of which fall back, agrees to rounding.

    The stage keeps no copies: what it is given (inputs until W, gradients of outputs until W) must not
    be written to until then, as by reusing a receive buffer, unless all references to it are gone.

    Examples
    --------
    >>> stage = SplitStage(torch.nn.Linear(4, 4))
    >>> (y,) = stage.forward("first", torch.randn(2, 4), requires_grad=[True])
    >>> (dx,) = stage.backward_input("first", [torch.ones_like(y)])
    >>> stage.module.weight.grad is None
    True
    >>> stage.backward_weight("first")
    >>> print(stage.report())
    100.0 % of weight-gradient FLOPs deferred
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str = "stage",
        keep_whole: Collection[str] = (),
        norms_wait: bool = False,
        early: bool = False,
        watch: bool = False,
    ) -> None:
        self.module = module
        self.name = name
        self._forwards = SplitForwards(module, keep_whole, norms_wait)
        self._flights: dict[Hashable, Flight] = {}
        self._checkpoints: dict[Hashable, Checkpoint] = {}
        self._away: dict[Hashable, Away] = {}
        self._learned = Learned()
        self._early = early
        self._watch = Watch() if watch else None
        # whether B consists of several runs of autograd; the first B finds out, where FSDP does not see to gradients
        self._many_runs = not self._forwards.sharded
        self.share: StageShare | None = None
        """What this stage has in common with others of its rank."""

    # ---- F

    def forward(
        self,
        key: Hashable,
        *inputs: Any,
        keywords: Mapping[str, Any] | None = None,
        requires_grad: Sequence[bool] | None = None,
        split: bool = True,
        finish: Callable[[Any], Any] | None = None,
        checkpoint: bool = False,
        moves: bool = False,
        stays: Sequence[Any] = (),
        call: Callable[..., Any] | None = None,
    ) -> tuple[Any, ...]:
        """Run the module on one microbatch.

        Parameters
        ----------
        key
            Names the microbatch until its W.
        inputs
            What the module is called with. A tensor that wants a gradient is detached from whatever it came from.
        keywords
            What it is called with by name; nothing of this gets a gradient.
        requires_grad
            Which inputs want a gradient; by default those whose own flag says so.
        split
            False if B and W of this microbatch will run as one: then this is plain autograd, unless another stage
            of the rank holds the same parameters.
        finish
            Applied to what the module returned, within the same graph: the loss of the last stage.
        checkpoint
            Keep the inputs alone; `recompute` then comes before the backward.
        moves
            What autograd saves will be away in host memory for a while: `offload`, `release` and `reload` then come
            before the backward.
        stays
            With `moves`: tensors that stay on the device besides the inputs, such as the target that `finish` knows;
            whatever else holds their memory would keep it there all the same.
        call
            Called in the module's place: it calls the module with what it makes of the inputs.

        Returns
        -------
        The outputs, detached, as a tuple; their `requires_grad` says which of them want a gradient back.

        Raises
        ------
        RunError
            If the microbatch is already in flight, or if it cannot be computed again, but should be.
        InvalidInput
            If the module returns something else than tensors.
        """
        if key in self._flights or key in self._checkpoints:
            raise RunError(f"{self.name}: forward of {key!r}, which is in flight already")
        wanted = self._wanted(inputs, requires_grad)
        if checkpoint:
            return self._keep_inputs_alone(key, Checkpoint(inputs, keywords, wanted, split, finish, call))
        away = self._moving((*inputs, *(keywords or {}).values(), *stays)) if moves else None
        self._learned.see_inputs(inputs)
        # what other stages hold, too, is summed use by use
        queue = WeightQueue() if split or self.share is not None else None
        flight = Flight(len(inputs), queue)
        if queue is not None:
            self._forwards.put_in(queue)
        try:
            if self._watch is None and away is None and torch.is_grad_enabled():
                result = self._run(call or self.module, flight, inputs, keywords, wanted, finish)
            else:
                with torch.enable_grad(), self._watch or nullcontext(), away.saving() if away else nullcontext():
                    result = self._run(call or self.module, flight, inputs, keywords, wanted, finish)
        finally:
            if queue is not None:
                self._forwards.take_out()
        if self._watch is not None:
            flight.inputs = Storages(x for x in inputs if isinstance(x, torch.Tensor))
        outputs = result if isinstance(result, tuple | list) else (result,)
        for output in outputs:
            if output is not None and not isinstance(output, torch.Tensor):
                raise InvalidInput(
                    f"{self.name} returned a {type(output).__name__}; a stage hands on tensors, or a tuple of tensors"
                )
        handed = flight.hand_out(outputs, are_losses=finish is not None)
        self._flights[key] = flight
        if away is not None:
            self._away[key] = away
        return handed

    def _run(
        self,
        call: Callable[..., Any],
        flight: Flight,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any] | None,
        wanted: Sequence[bool],
        finish: Callable[[Any], Any] | None,
    ) -> Any:
        entered = enter(inputs, wanted, self._forwards.ticket, flight.caught)
        if keywords:
            named = {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
            result = call(*entered, **named)
        else:
            result = call(*entered)
        return result if finish is None else finish(result)

    def _keep_inputs_alone(
        self,
        key: Hashable,
        kept: Checkpoint,
    ) -> tuple[Any, ...]:
        if self._forwards.sharded:
            raise RunError(f"{self.name} is sharded by FSDP and cannot be computed again; solve without recomputation")
        with DRAWING:
            before = kept.versions()
            with nothing_saved(self.name):
                outputs = self._run_kept(key, kept, split=False)
        del self._flights[key]
        if kept.versions() != before:
            raise RunError(
                f"{self.name} writes into its inputs, so it cannot be computed again from them; solve without "
                "recomputation, or cut the model elsewhere"
            )
        self._checkpoints[key] = kept
        return outputs

    def recompute(self, key: Hashable) -> None:
        """Run the forward of a microbatch once more, this time for its backward.

        Raises
        ------
        RunError
            If the microbatch is not between such a forward and its backward.
        """
        kept = self._checkpoints.pop(key, None)
        if kept is None:
            raise RunError(f"{self.name}: recompute of {key!r}, whose forward has not kept a checkpoint")
        with DRAWING, kept.drawn_again(), as_before(self.module):
            self._run_kept(key, kept, split=kept.split)

    def _run_kept(self, key: Hashable, kept: Checkpoint, *, split: bool) -> tuple[Any, ...]:
        return self.forward(
            key,
            *kept.inputs,
            keywords=kept.keywords,
            requires_grad=kept.wanted,
            split=split,
            finish=kept.finish,
            call=kept.call,
        )

    def _wanted(self, inputs: Sequence[Any], requires_grad: Sequence[bool] | None) -> list[bool]:
        if requires_grad is None:
            return [isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]
        if len(requires_grad) != len(inputs):
            raise InvalidInput(f"{self.name}: {len(requires_grad)} flags were given for {len(inputs)} inputs")
        for i, (x, want) in enumerate(zip(inputs, requires_grad, strict=True)):
            if want and not (isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())):
                kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
                raise InvalidInput(f"{self.name}: input {i} is of {kind}, which has no gradient")
        return list(requires_grad)

    # ---- B and W

    def backward_input(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """Compute the gradients of the inputs, and queue what the weights need.

        Parameters
        ----------
        key
            Of the microbatch.
        grad_outputs
            One for each output; None for one that nobody used. For a loss (a scalar that `finish`
            returned) None means 1.

        Returns
        -------
        The gradient of each input, None for those that want none or got none.

        Raises
        ------
        RunError
            If the microbatch is not between its forward and its B.
        """
        flight = self._flight(key, "backward_input", weights_wait=False)
        queue = flight.queue
        if queue is None:
            raise RunError(f"{self.name}: backward_input of {key!r}, whose forward was run with split=False")
        edges, starts = flight.start(grad_outputs)
        # the first B must look even if nothing waits: it learns what falls back
        waits = not self._early or not self._learned.complete
        aside = GradientsAside(self._parameters() if waits else (), queue.add_piece if self._many_runs else None)
        # checkpointed segments run their modules again
        self._forwards.put_in(queue)
        queue.is_open = True
        try:
            with aside:
                self._run_backward(edges, starts)
        finally:
            queue.is_open = False
            self._forwards.take_out()
        del edges
        queue.add_found(aside.found)
        if self._many_runs:
            self._learned.see_fallback(queue.found())
            self._many_runs = queue.sort_out()
        elif aside.found:
            self._learned.see_fallback(parameter for parameter, _ in aside.found)
        flight.weights_wait = True
        return flight.take_input_gradients()

    def backward_weight(self, key: Hashable) -> None:
        """Add the microbatch's gradients to ``.grad`` of the parameters; it is then no longer in flight.

        Raises
        ------
        RunError
            If the microbatch is not between its B and its W.
        """
        queue = self._flight(key, "backward_weight", weights_wait=True).queue
        assert queue is not None
        self._learned.see_waiting(queue.entries)
        with torch.no_grad(), plain_precision():
            queue.run(key, self.share)
        del self._flights[key]

    def backward(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """B and W in one; plain autograd if the forward was told with ``split=False``.

        Parameters, returns and errors as of `backward_input`.
        """
        flight = self._flight(key, "backward", weights_wait=False)
        if flight.queue is not None:
            gradients = self.backward_input(key, grad_outputs)
            self.backward_weight(key)
            return gradients
        edges, starts = flight.start(grad_outputs)
        self._run_backward(edges, starts)
        del self._flights[key]
        return flight.take_input_gradients()

    def _run_backward(self, edges: list[GradientEdge], starts: list[torch.Tensor]) -> None:
        if not edges:
            return
        if self._watch is None and not any_autocast():
            run_backward(edges, starts)
            return
        with plain_precision(), self._watch or nullcontext():
            run_backward(edges, starts)

    def _flight(self, key: Hashable, doing: str, *, weights_wait: bool) -> Flight:
        flight = self._flights.get(key)
        if flight is None and key in self._checkpoints:
            raise RunError(f"{self.name}: {doing} of {key!r}: its recompute comes first")
        if flight is None:
            raise RunError(f"{self.name}: {doing} of {key!r}, which is not in flight; its forward comes first")
        if flight.weights_wait is not weights_wait:
            missing = "its backward_input comes first" if weights_wait else "its backward_input has run already"
            raise RunError(f"{self.name}: {doing} of {key!r}: {missing}")
        if key in self._away:
            self.arrive(key)
        return flight

    # ---- what is there

    @property
    def in_flight(self) -> tuple[Hashable, ...]:
        """The microbatches between their forward and their W: those kept as checkpoints, then the others."""
        return (*self._checkpoints, *self._flights)

    def abandon(self) -> None:
        """Drop every microbatch in flight, as after an error."""
        self._flights.clear()
        self._checkpoints.clear()
        self._away.clear()
        if self.share is not None:
            self.share.forget()
        for module in self._forwards.sharded:
            # what it has gathered may be weights that are put right meanwhile
            module.reshard()  # type: ignore[operator]

    def _parameters(self) -> list[torch.Tensor]:
        """Every parameter that is there now; a tied one as often as it is tied; no lazy one that has not run yet."""
        return [
            p
            for held in self._forwards.parameters
            for p in held.values()
            if p is not None and type(p) is not UninitializedParameter
        ]

    def held_bytes(self) -> HeldBytes:
        """What the microbatches in flight keep alive; parameters, buffers and ``.grad`` are not among it."""
        parameters = self._parameters()
        known = storages([*parameters, *self.module.buffers(), *(p.grad for p in parameters if p.grad is not None)])
        return held_by(known, self._flights.values(), self._checkpoints.values(), self._watch)

    def report(self) -> SplitReport:
        """What is deferred and what is not, from the microbatches that have run.

        Raises
        ------
        RunError
            If none has run through W yet.
        """
        return self._learned.report(self.name, self.module, self._forwards)
