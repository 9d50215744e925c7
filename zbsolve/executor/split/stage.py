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

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.aside import GradientsAside
from zbsolve.executor.split.flight import Flight
from zbsolve.executor.split.flops import deferred_flops, fallback_flops, positions_of
from zbsolve.executor.split.held import HeldBytes, Watch, storages
from zbsolve.executor.split.install import SplitForwards
from zbsolve.executor.split.queue import WeightQueue
from zbsolve.executor.split.report import Fallback, SplitReport

__all__ = ["SplitStage"]


_NOTHING: AbstractContextManager[Any] = nullcontext()


def _plain_precision() -> AbstractContextManager[Any]:
    """Autocast off: a backward runs in the precisions its forward has chosen."""
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    if not on:
        return _NOTHING
    stack = ExitStack()
    for device in on:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


class _Place:
    """The queue of the microbatch under way on this stage, and the ticket into autograd."""

    __slots__ = ("queue", "ticket")

    def __init__(self) -> None:
        self.queue: WeightQueue | None = None
        self.ticket = torch.zeros((), requires_grad=True)


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
    watch
        Whether to note all that lives, for `held_bytes`; slows the stage down.

    Raises
    ------
    InvalidInput
        If `keep_whole` names what is not there.

    Notes
    -----
    Gradients end in ``param.grad`` when W (or the fused backward) of their microbatch runs, added in
    the order of these calls. In float32 they are bitwise those of autograd in the same order.
    """

    def __init__(
        self, module: nn.Module, *, name: str = "stage", keep_whole: Collection[str] = (), watch: bool = False
    ) -> None:
        self.module = module
        self.name = name
        self._place = _Place()
        self._forwards = SplitForwards(module, self._place, keep_whole)
        self._flights: dict[Hashable, Flight] = {}
        self._deferred_flops: int | None = None
        self._positions = 1
        self._watch = Watch() if watch else None
        self._fallback: dict[int, torch.Tensor] = {}

    # ---- F

    def forward(
        self,
        key: Hashable,
        *inputs: Any,
        requires_grad: Sequence[bool] | None = None,
        split: bool = True,
        finish: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, ...]:
        """Run the module on one microbatch.

        Parameters
        ----------
        key
            Names the microbatch until its W.
        inputs
            What the module is called with. A tensor that wants a gradient is detached from whatever it came from.
        requires_grad
            Which inputs want a gradient; by default those whose own flag says so.
        split
            False if B and W of this microbatch will run as one: then this is plain autograd.
        finish
            Applied to what the module returned, within the same graph: the loss of the last stage.

        Returns
        -------
        The outputs, detached, as a tuple; their `requires_grad` says which of them want a gradient back.

        Raises
        ------
        RunError
            If the microbatch is already in flight.
        InvalidInput
            If the module returns something else than tensors.
        """
        if key in self._flights:
            raise RunError(f"{self.name}: forward of {key!r}, which is in flight already")
        leaves = self._leaves(inputs, requires_grad)
        self._positions = positions_of(inputs)
        queue = WeightQueue() if split else None
        flight = Flight(leaves, queue)
        with torch.enable_grad(), self._running(queue):
            result = self.module(*leaves)
            if finish is not None:
                result = finish(result)
        outputs = result if isinstance(result, tuple | list) else (result,)
        for output in outputs:
            if output is not None and not isinstance(output, torch.Tensor):
                raise InvalidInput(
                    f"{self.name} returned a {type(output).__name__}; a stage hands on tensors, or a tuple of tensors"
                )
        flight.set_outputs(outputs)
        self._flights[key] = flight
        return tuple(None if o is None else o.detach().requires_grad_(o.requires_grad) for o in outputs)

    def _leaves(self, inputs: Sequence[Any], requires_grad: Sequence[bool] | None) -> list[Any]:
        if requires_grad is not None and len(requires_grad) != len(inputs):
            raise InvalidInput(f"{self.name}: {len(requires_grad)} flags were given for {len(inputs)} inputs")
        leaves = []
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                leaves.append(value)
                continue
            wanted = value.requires_grad if requires_grad is None else requires_grad[i]
            if wanted and not (value.is_floating_point() or value.is_complex()):
                raise InvalidInput(f"{self.name}: input {i} is of {value.dtype}, which has no gradient")
            leaves.append(value.detach().requires_grad_(wanted))
        return leaves

    @contextmanager
    def _running(self, queue: WeightQueue | None) -> Iterator[None]:
        """Split forwards in place, and `queue` where they find it."""
        watch = self._watch if self._watch is not None else _NOTHING
        if queue is None:
            with watch:
                yield
            return
        with self._forwards, watch:
            self._place.queue = queue
            try:
                yield
            finally:
                self._place.queue = None

    # ---- B and W

    def backward_input(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """Compute the gradients of the inputs, and queue what the weights need.

        Parameters
        ----------
        key
            Of the microbatch.
        grad_outputs
            One for each output; None for one that nobody used, and for a scalar (then it is 1).

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
        aside = GradientsAside(self._parameters())
        with _plain_precision(), self._running(queue), aside:
            queue.is_open = True
            try:
                if edges:
                    torch.autograd.backward(edges, starts)
            finally:
                queue.is_open = False
        del edges
        queue.add_found(aside.found)
        flight.weights_wait = True
        for parameter, _ in aside.found:
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
            queue.run()
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
        with _plain_precision(), self._running(None):
            if edges:
                torch.autograd.backward(edges, starts)
        del self._flights[key]
        return flight.take_input_gradients()

    def _flight(self, key: Hashable, doing: str, *, weights_wait: bool) -> Flight:
        flight = self._flights.get(key)
        if flight is None:
            raise RunError(f"{self.name}: {doing} of {key!r}, which is not in flight; its forward comes first")
        if flight.weights_wait is not weights_wait:
            missing = "its backward_input comes first" if weights_wait else "its backward_input has run already"
            raise RunError(f"{self.name}: {doing} of {key!r}: {missing}")
        return flight

    # ---- what is there

    @property
    def in_flight(self) -> tuple[Hashable, ...]:
        """The microbatches between their forward and their W, in the order of their forwards."""
        return tuple(self._flights)

    def abandon(self) -> None:
        """Drop every microbatch in flight, as after an error."""
        self._flights.clear()

    def _parameters(self) -> list[torch.Tensor]:
        unique = {id(p): p for held in self._forwards.parameters for p in held.values() if p is not None}
        return list(unique.values())

    def held_bytes(self) -> HeldBytes:
        """What the microbatches in flight keep alive; parameters, buffers and ``.grad`` are not among it."""
        parameters = self._parameters()
        known = storages([*parameters, *self.module.buffers(), *(p.grad for p in parameters if p.grad is not None)])
        flights = list(self._flights.values())
        entries = [e for f in flights if f.queue is not None for e in f.queue.entries]
        sizes = []
        for tensors in (
            (x for f in flights for x in f.inputs or () if isinstance(x, torch.Tensor)),
            (t for e in entries if not e.is_found for t in e.tensors()),
            (t for e in entries if e.is_found for t in e.tensors()),
        ):
            new = {key: size for key, size in storages(tensors).items() if key not in known}
            known |= new
            sizes.append(sum(new.values()))
        rest = None if self._watch is None else sum(n for key, n in self._watch.alive().items() if key not in known)
        return HeldBytes(inputs=sizes[0], queued=sizes[1], found=sizes[2], saved=rest)

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
        fallback = tuple(
            Fallback(
                name=names.get(key, "(replaced since)"),
                reason=self._forwards.reasons.get(
                    key, "used outside a module that can be split, or by a call that cannot be"
                ),
                flops=fallback_flops(parameter, self._positions),
            )
            for key, parameter in self._fallback.items()
        )
        return SplitReport(stage=self.name, deferred_flops=self._deferred_flops, fallback=fallback)
