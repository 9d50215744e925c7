"""Measuring a model: the time, memory and links of every stage, as a profile.

Each stage is measured apart, with real inputs and real gradients from one pass through the whole
model. Repeats run over the stages in turn, so that a machine that drifts hits all alike::

    warm-up   stage 0, stage 1, ... several times
    repeat    stage 0: F B W, then F BW    stage 1: F B W, then F BW    ...

Durations are medians; their interquartile ranges go into the profile's source. The backward is split as the
runtime splits it (`stagework.py`), and the source says what of the weight gradients W does.
"""

from __future__ import annotations

import gc
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.borders import Border, borders
from zbsolve.executor.clock import Clock, clock_of
from zbsolve.executor.doubts import doubts, refuse_shared
from zbsolve.executor.held import held_bytes, storage_bytes
from zbsolve.executor.kept import KeptBuffers
from zbsolve.executor.link import measure_host_link, measure_link
from zbsolve.executor.stagework import StageWork, Tensors, tensors_of
from zbsolve.executor.target import LossFn, Sample, check_target, load_target, users_code
from zbsolve.profile import Profile, ProfileSource, StageCost, StageSpread
from zbsolve.units import whole_amount

__all__ = ["load_target", "measure_profile"]

MOST_WAITING = 0.1
"""Share of the time not computing beyond which a profile says so."""


def measure_profile(
    stages: Sequence[torch.nn.Module],
    sample: Sample,
    loss_fn: LossFn,
    *,
    repeats: int = 20,
    warmup: int = 3,
    device: str | torch.device | None = None,
    threads: int | None = 1,
    clock: Literal["wall", "processor"] = "wall",
    optimizer_copies: int = 2,
    host_bandwidth: int | None = None,
    name: str = "",
    warn: Callable[[str], None] | None = None,
) -> Profile:
    """Measure what one microbatch costs on every stage of a model.

    Parameters
    ----------
    stages
        The modules of the stages, from input to loss. Parameters, gradients, buffers and random
        state are left as they were.
    sample
        ``(inputs, target)`` of one microbatch; inputs a tensor or a tuple of tensors.
    loss_fn
        ``loss_fn(output, target)`` of the last stage's output, a scalar. Its time counts there.
    repeats, warmup
        Measured and unmeasured rounds over all stages.
    device
        Where to measure; the stages are moved there. Default: where they are.
    threads
        Threads of each operation on the CPU, as many as each rank will have; None for torch's own choice.
    clock
        On the CPU: ``"wall"``, or ``"processor"`` for the time that the processor worked for this process.
        The latter leaves out other programs on a busy machine, and whatever a stage waits for; it
        needs one thread.
    optimizer_copies
        Tensors of the parameters' size that the optimizer keeps; 2 for Adam.
    host_bandwidth
        Bytes a second between a device and host memory, either way; None to measure it.
    name
        Of the profile.
    warn
        Called with each warning; they stand in the note of the profile's source too.

    Returns
    -------
    Profile
        Times in ns as medians, with their interquartile ranges in its source. Bytes held are what lives on
        account of a microbatch once its outputs have been handed on: what autograd saves, inputs among it, until B,
        and what W needs until W; storages once, parameters not (CPU), or what the allocator holds (CUDA). Receive
        slots are not among it. Of a stage that can be computed again what it holds until then, and what of its bytes
        leaves the device when it is moved to host memory (0 where it cannot be), by doing so. Static bytes are
        parameters, their gradients and `optimizer_copies` times the trainable parameters, and buffers.

    Raises
    ------
    InvalidInput
        If the arguments are not as described, if stages share weights, or if the model's own code fails; then with
        its message.
    """
    modules, (inputs, target), loss_fn = check_target((stages, sample, loss_fn), "measure_profile was given")
    refuse_shared(modules)
    if whole_amount(repeats, "repeats", error=InvalidInput) < 1:
        raise InvalidInput("repeats must be at least 1")
    whole_amount(warmup, "warmup", error=InvalidInput)
    whole_amount(optimizer_copies, "optimizer_copies", error=InvalidInput)
    if host_bandwidth is not None and whole_amount(host_bandwidth, "host_bandwidth", error=InvalidInput) < 1:
        raise InvalidInput("host_bandwidth must be at least 1 byte a second")
    if threads is not None and whole_amount(threads, "threads", error=InvalidInput) < 1:
        raise InvalidInput("threads must be at least 1")
    if clock not in ("wall", "processor"):
        raise InvalidInput(f"the clock is 'wall' or 'processor', got {clock!r}")
    if clock == "processor" and threads != 1:
        raise InvalidInput("processor time adds up over threads, so measuring by it needs threads=1")
    processor = clock == "processor"
    where = _device(device, modules, inputs)
    for module in modules:
        module.to(where)
    entering = tuple(_moved(t, where) for t in (inputs if isinstance(inputs, tuple) else (inputs,)))
    works = [StageWork(number, module) for number, module in enumerate(modules)]
    works[-1] = StageWork(len(modules) - 1, modules[-1], loss_fn, _moved(target, where))
    with _quiet(modules, where, threads):
        used_threads = torch.get_num_threads()
        stages_met = list(zip(works, borders(works, entering), strict=True))
        laps, waiting = _time(stages_met, clock_of(where, processor=processor), repeats, warmup)
        held, warnings = [], [_busy(waiting)] if where.type == "cpu" and not processor else []
        for work, border in stages_met:
            with users_code(f"stage {work.number} failed"):
                warnings += [f"WARNING: {doubt}" for doubt in doubts(work, border)]
                held.append(held_bytes(work, border, where))
    output_bytes = [border.output_bytes for _, border in stages_met[:-1]] + [0]
    link, link_note = measure_link(where, max(output_bytes))
    host_link, host_note = measure_host_link(where, max(bytes_.offload_bytes for bytes_ in held), host_bandwidth)
    warnings = [text for text in warnings if text]
    if warn is not None:
        for text in warnings:
            warn(text)
    costs = [
        StageCost(
            **{field: round(statistics.median(values)) for field, values in lap.items()},
            activation_bytes=bytes_.after_forward,
            backward_weight_bytes=bytes_.after_input,
            workspace_bytes=bytes_.workspace,
            checkpoint_bytes=bytes_.checkpoint_bytes,
            offload_bytes=bytes_.offload_bytes,
            static_bytes=_static_bytes(module, optimizer_copies),
            output_bytes=size,
            name=type(module).__name__[:200],
        )
        for module, lap, bytes_, size in zip(modules, laps, held, output_bytes, strict=True)
    ]
    on_cpu = where.type == "cpu"
    notes = [
        f"{clock} time, {used_threads} thread{'s' * (used_threads > 1)} for each operation"
        if on_cpu
        else "CUDA events",
        _deferred(works),
        "bytes held: what lives once outputs are handed on, storages once; workspace not measured"
        if on_cpu
        else "bytes held and workspace: of the caching allocator",
        f"static bytes: parameters, gradients, {optimizer_copies} optimizer copies, buffers",
        link_note,
        host_note,
        *warnings,
    ]
    source = ProfileSource(
        host=platform.node(),
        device=_device_name(where),
        split="zbsolve",
        versions=(("torch", str(torch.__version__)), ("python", platform.python_version())),
        samples=repeats,
        spread=tuple(StageSpread.of(lap) for lap in laps),
        note="; ".join(notes),
    )
    return Profile(stages=tuple(costs), link=link, name=name, source=source, host_link=host_link)


Laps = dict[str, list[int]]


def _time(
    stages: Sequence[tuple[StageWork, Border]], clock: Clock, repeats: int, warmup: int
) -> tuple[list[Laps], float]:
    """The durations of every stage, a list for each field of its cost; and the share of time not computing."""
    laps: list[Laps] = [{} for _ in stages]
    wall, busy = time.perf_counter_ns(), time.process_time_ns()
    for round_ in range(warmup + repeats):
        for (work, border), lap in zip(stages, laps, strict=True):
            for field, values in _one_round(work, border, clock).items():
                if round_ >= warmup:
                    lap.setdefault(field, []).extend(values)
    return laps, 1 - (time.process_time_ns() - busy) / max(time.perf_counter_ns() - wall, 1)


def _busy(waiting: float) -> str:
    if waiting < MOST_WAITING:
        return ""
    return (
        f"WARNING: {waiting:.0%} of the time the process was not computing: the machine was busy with other work, "
        "or the stages wait; where it was busy, measure again when it is not"
    )


def _one_round(work: StageWork, border: Border, clock: Clock) -> dict[str, list[int]]:
    """F B W, then F and the fused backward, on fresh inputs."""
    marks = []
    with users_code(f"split backward of stage {work.number} failed"):
        leaves = border.leaves()
        clock.settle()
        marks.append(clock.mark())
        flight = work.forward(leaves)
        del leaves
        marks.append(clock.mark())
        work.backward_input(flight, border.output_grads)
        marks.append(clock.mark())
        work.backward_weight(flight)
        marks.append(clock.mark())
        del flight
    with users_code(f"backward of stage {work.number} failed"):
        leaves = border.leaves()
        clock.settle()
        marks.append(clock.mark())
        flight = work.forward(leaves, split=False)
        marks.append(clock.mark())
        work.backward(flight, border.output_grads)
        marks.append(clock.mark())
    clock.settle()
    forward, backward_input, backward_weight, _, again, fused = (
        clock.between(a, b) for a, b in itertools.pairwise(marks)
    )
    return {
        "forward_ns": [forward, again],
        "backward_input_ns": [backward_input],
        "backward_weight_ns": [backward_weight],
        "backward_ns": [fused],
    }


def _deferred(works: Sequence[StageWork]) -> str:
    """What of the weight gradients W does, over all stages, and what B has to do."""
    reports = [work.report() for work in works]
    total = sum(r.deferred_flops + r.norm_flops + r.fallback_flops for r in reports)
    share = sum(r.deferred_flops for r in reports) / total if total else 1.0
    names = [f"{f.name} of {r.stage}" for r in reports for f in r.fallback]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"split backward of the runtime: W does {100 * share:.1f} % of weight-gradient FLOPs"
    return text + (f"; B has to weigh {shown}" if names else "")


def _static_bytes(module: torch.nn.Module, optimizer_copies: int) -> int:
    trainable = storage_bytes(p for p in module.parameters() if p.requires_grad)
    return storage_bytes([*module.parameters(), *module.buffers()]) + trainable * (1 + optimizer_copies)


@contextmanager
def _quiet(modules: Sequence[torch.nn.Module], device: torch.device, threads: int | None) -> Iterator[None]:
    """Conditions of the measurement; afterwards the model and the process are as they were."""
    gradients = [(p, p.grad) for m in modules for p in m.parameters()]
    buffers = KeptBuffers(modules)
    threads_before, collecting = torch.get_num_threads(), gc.isenabled()
    for module in modules:
        _forget_gradients(module)
    gc.collect()
    gc.disable()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads_before)
        if collecting:
            gc.enable()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        buffers.put_back()


def _forget_gradients(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _device(
    asked: str | torch.device | None, modules: Sequence[torch.nn.Module], inputs: torch.Tensor | Tensors
) -> torch.device:
    if asked is None:
        parameters: list[torch.Tensor] = [p for m in modules for p in m.parameters()]
        tensors = parameters or list(tensors_of(inputs, "the sample is"))
        places = {t.device for t in tensors}
        if len(places) > 1:
            raise InvalidInput(
                f"the stages lie on {', '.join(sorted(map(str, places)))}; say on which device to measure"
            )
        device = places.pop()
    else:
        try:
            device = torch.device(asked)
        except RuntimeError as error:
            raise InvalidInput(f"{asked!r} is no device: {error}") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidInput("torch sees no CUDA device here; measure on the CPU, or install a torch with CUDA")
        if (device.index or 0) >= torch.cuda.device_count():
            raise InvalidInput(f"there is no {device}: torch sees {torch.cuda.device_count()} CUDA device(s)")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        raise InvalidInput(f"measuring works on cpu and cuda, not on {device}")
    return device


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A compact copy: a slice of a large tensor would count with all of its storage."""
    return tensor.detach().to(device).clone().requires_grad_(tensor.requires_grad)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
