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
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.again import DRAWING, Checkpoint, as_before, nothing_saved
from zbsolve.executor.split.arriving import arrived
from zbsolve.executor.split.aside import GradientsAside
from zbsolve.executor.split.away import Away
from zbsolve.executor.split.engine import run_backward
from zbsolve.executor.split.entrance import enter
from zbsolve.executor.split.flight import Flight
from zbsolve.executor.split.flops import deferred_flops, fallback_flops, positions_of
from zbsolve.executor.split.held import HeldBytes, Storages, Watch, storages
from zbsolve.executor.split.install import SplitForwards
from zbsolve.executor.split.report import Fallback, SplitReport
from zbsolve.executor.split.shared import StageShare
from zbsolve.executor.split.waiting import WeightQueue, kept_by

__all__ = ["SplitStage"]


_UNKNOWN_USE = "used outside a module that can be split, or by a call that cannot be"

_NOTHING: AbstractContextManager[Any] = nullcontext()


def _plain_precision() -> AbstractContextManager[Any]:
    """Autocast off: a backward runs in the precisions its forward has chosen."""
    on = [device for device in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(device)]
    if not on:
        return _NOTHING
    stack = ExitStack()
    for device in on:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _no_mark() -> None:
    return None


class SplitStage:
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
        self._deferred_flops: int | None = None
        self._positions = 1
        self._early = early
        self._watch = Watch() if watch else None
        self._fallback: dict[int, torch.Tensor] = {}
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
        away = self._moving(inputs) if moves else None
        self._positions = positions_of(inputs)
        # what other stages hold, too, is summed use by use
        queue = WeightQueue() if split or self.share is not None else None
        flight = Flight(wanted, queue)
        if queue is not None:
            self._forwards.put_in(queue)
        try:
            with torch.enable_grad(), self._watched(), _NOTHING if away is None else away.saving():
                entered = enter(inputs, wanted, self._forwards.ticket, flight.caught)
                named = {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in (keywords or {}).items()}
                result = (call or self.module)(*entered, **named)
                if finish is not None:
                    result = finish(result)
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
        flight.set_outputs(outputs, are_losses=finish is not None)
        self._flights[key] = flight
        if away is not None:
            self._away[key] = away
        return tuple(None if o is None else arrived(o.detach().requires_grad_(o.requires_grad)) for o in outputs)

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

    # ---- away in host memory and back

    def _moving(self, inputs: tuple[Any, ...]) -> Away:
        if self._forwards.sharded:
            raise RunError(f"{self.name} is sharded by FSDP and cannot be moved away; solve without offload")
        given = [x for x in inputs if isinstance(x, torch.Tensor)]
        return Away(self.name, [*self._parameters(), *self.module.buffers(), *given])

    def offload(self, key: Hashable, mark: Callable[[], Any] = _no_mark) -> tuple[Any, Any]:
        """Start to copy what the forward of a microbatch has saved to host memory.

        Parameters
        ----------
        key
            Of the microbatch, whose forward was told that it `moves`.
        mark
            Called where the copies begin and where they end, on the stream that they run on.

        Returns
        -------
        What `mark` gave.

        Raises
        ------
        RunError
            If the microbatch is not right behind such a forward.
        """
        away = self._moved(key, "offload")
        # what several microbatches have saved was not made by any of them
        others = (other.memories() for name, other in self._away.items() if name != key)
        return away.offload(mark, frozenset[int]().union(*others))

    def release(self, key: Hashable) -> None:
        """Let go of what was copied, as soon as it is; on CUDA the stream waits, not the caller.

        Raises
        ------
        RunError
            If the microbatch is not right behind its offload.
        """
        self._moved(key, "release").release()

    def reload(self, key: Hashable, mark: Callable[[], Any] = _no_mark) -> tuple[Any, Any]:
        """Take memory again and start to copy it back; parameters, returns and errors as of `offload`."""
        away = self._moved(key, "reload")
        marks = away.reload(mark)
        if self._watch is not None:
            for memory in away.reloaded():
                self._watch.made.note(memory)
        return marks

    def arrive(self, key: Hashable) -> None:
        """Wait until what was reloaded is back; the backward does so, too, if nobody has.

        Raises
        ------
        RunError
            If the microbatch is not right behind its reload.
        """
        self._moved(key, "backward").back()
        del self._away[key]

    def _moved(self, key: Hashable, doing: str) -> Away:
        away = self._away.get(key)
        if away is None:
            raise RunError(f"{self.name}: {doing} of {key!r}, whose forward was not told that it moves")
        return away

    def host_bytes(self) -> int:
        """What lies in host memory on account of microbatches in flight."""
        return sum(away.host_bytes() for away in self._away.values())

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

    def _watched(self) -> AbstractContextManager[Any]:
        return _NOTHING if self._watch is None else self._watch

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
        waits = not self._early or self._deferred_flops is None
        aside = GradientsAside(self._parameters() if waits else (), queue.add_piece if self._many_runs else None)
        # checkpointed segments run their modules again
        self._forwards.put_in(queue)
        queue.is_open = True
        try:
            with aside, _plain_precision(), self._watched():
                if edges:
                    run_backward(edges, starts)
        finally:
            queue.is_open = False
            self._forwards.take_out()
        del edges
        queue.add_found(aside.found)
        found = [parameter for parameter, _ in aside.found]
        if self._many_runs:
            found = queue.found()
            self._many_runs = queue.sort_out()
        flight.weights_wait = True
        for parameter in found:
            self._fallback.setdefault(id(parameter), parameter)
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
        if self._deferred_flops is None:
            self._deferred_flops = deferred_flops(queue.entries)
        with torch.no_grad(), _plain_precision():
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
        with _plain_precision(), self._watched():
            if edges:
                run_backward(edges, starts)
        del self._flights[key]
        return flight.take_input_gradients()

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
        entries = [e for f in self._flights.values() if f.queue is not None for e in f.queue.entries]

        def new(sizes: dict[int, int]) -> int:
            fresh = {key: size for key, size in sizes.items() if key not in known}
            known.update(fresh)
            return sum(fresh.values())

        queued = new(storages(kept_by(entries, ready=False)))
        ready = new(storages(kept_by(entries, ready=True)))
        if self._watch is None:
            return HeldBytes(queued=queued, ready=ready, inputs=None, saved=None)
        inputs = sum(new(f.inputs.alive()) for f in self._flights.values() if f.inputs is not None)
        for kept in self._checkpoints.values():
            inputs += new(storages(x for x in kept.inputs if isinstance(x, torch.Tensor)))
        return HeldBytes(queued=queued, ready=ready, inputs=inputs, saved=new(self._watch.made.alive()))

    def report(self) -> SplitReport:
        """What is deferred and what is not, from the microbatches that have run.

        Raises
        ------
        RunError
            If none has run through W yet.
        """
        if self._deferred_flops is None:
            raise RunError(f"{self.name}: no microbatch has run through W yet; there is nothing to report")
        names = {id(p): name for name, p in self.module.named_parameters()}
        places = {key: place for place, key in enumerate(names)}
        found = dict(self._fallback)
        # what FSDP computes with is in no module when it is done
        found.update((id(p), p) for m in self._forwards.sharded for p in m.parameters() if p.requires_grad)
        fallback = tuple(
            Fallback(
                name=names[key],
                reason=self._forwards.reasons.get(key, _UNKNOWN_USE),
                flops=fallback_flops(parameter, self._positions),
            )
            for key, parameter in sorted(found.items(), key=lambda item: places.get(item[0], 0))
            if key in names and key not in self._forwards.norms
        )
        norms = (p for key, p in self._fallback.items() if key in self._forwards.norms)
        return SplitReport(
            stage=self.name,
            deferred_flops=self._deferred_flops,
            norm_flops=sum(fallback_flops(p, self._positions) for p in norms),
            fallback=fallback,
        )
