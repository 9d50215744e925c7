"""Traces of torch's profiler (Chrome JSON, also gzipped): how long operations took.

An operation is a range: ``PP:3F0`` of torch's pipelining runtime, or ``F0 of stage 3`` of our executor. Two things
make the range itself the wrong duration::

    waiting      torch waits for a message within the range of the operation that needs it; so the time
                 ahead of the first operator in the range does not count, nor a range without any (torch's
                 input gradient of stage 0)
    devices      on a GPU the range is the time to launch; so where kernels were launched within it, by
                 its thread or autograd's, they count, from the first start to the last end, NCCL's aside

The first step is cold and left out where there are more.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.interop.ranges import Named, operation_of
from zbsolve.interop.samples import Samples
from zbsolve.interop.text import json_of
from zbsolve.ops import Kind
from zbsolve.units import MAX_AMOUNT, counted

__all__ = ["read_torch_profiler", "refuse_other_runs"]

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "hip_runtime")
_MESSAGES = ("c10d::", "gloo:", "nccl:", "record_param_comms", "mpi:", "ucc:")


@dataclass(frozen=True, slots=True)
class _Range:
    """An event with its times, in ns."""

    name: str
    process: object
    thread: object
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Launch:
    """A call of the host that started something on a device."""

    start: int
    which: object
    process: object
    thread: object


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What ran on a device; its process is the device."""

    start: int
    end: int
    device: object


def read_torch_profiler(data: bytes, name: object, *, skip_steps: int | None = None) -> Samples:
    """Read one trace, of one rank or of several.

    Parameters
    ----------
    data
        The content of the file.
    name
        What messages call it.
    skip_steps
        Steps at the beginning that do not count; None is the first, if there are more.

    Raises
    ------
    FileFormatError
        If it is no trace, or has no range of an operation.
    InvalidInput
        If no step would be left.
    """
    tree = json_of(data, name)
    events = _events(tree, name)
    ranges: list[tuple[_Range, Named]] = []
    operators: dict[tuple[object, object], list[int]] = defaultdict(list)
    launches: list[_Launch] = []
    kernels: dict[object, _Kernel] = {}
    together = 0
    for place, event in events:
        category = event.get("cat")
        if category == "gpu_user_annotation":
            continue
        title = event.get("name")
        if not isinstance(title, str):
            continue
        if category in _DEVICE or category in _LAUNCHES:
            timed = _timed(event, title, place, name)
            which = _correlation(event)
            if which is None:
                continue
            if category in _LAUNCHES:
                launches.append(_Launch(timed.start, which, timed.process, timed.thread))
            elif "nccl" not in title.lower() and "rccl" not in title.lower():
                kernels[which] = _Kernel(timed.start, timed.end, timed.process)
            continue
        found = operation_of(title)
        if found is not None:
            ranges.append((_timed(event, title, place, name), found))
        elif category == "cpu_op" and not title.startswith(_MESSAGES):
            timed = _timed(event, title, place, name)
            operators[timed.process, timed.thread].append(timed.start)
        elif title.startswith("PP:(") and title.endswith("OVERLAP_F_B"):
            together += 1
    if not ranges:
        raise FileFormatError(
            name,
            "has no range of a pipeline's operation: neither PP:0F0 and so on, as torch's pipelining runtime writes "
            "them (its one-stage GPipe and 1F1B do not), nor F0 of stage 0, as zbsolve's executor does; where ranks "
            "are threads, profile with profile_all_threads",
        )
    for starts in operators.values():
        starts.sort()
    worked = _Worked(ranges, operators, [launch for launch in launches if launch.which in kernels], kernels)
    steps = max(Counter(found for _, found in ranges).values())
    if skip_steps is not None and skip_steps >= steps:
        raise InvalidInput(
            f"{name}: --skip-steps {skip_steps} leaves nothing of the {counted(steps, 'step')} that were traced"
        )
    durations = _durations(ranges, worked, 1 if skip_steps is None else skip_steps)
    notes = []
    if together:
        notes.append(f"{counted(together, 'pair')} of operations that ran together are left out")
    rank, ranks = _process(tree)
    return Samples(
        durations=durations,
        tool="torch's profiler",
        notes=tuple(notes),
        rank=rank,
        ranks=ranks,
        # what ran in pairs is left out, and may have been the last
        microbatches=None if together else 1 + max(found.microbatch for _, found in ranges),
    )


def _process(tree: Any) -> tuple[int | None, int | None]:
    """Rank and number of the processes, where the trace tells them."""
    about = tree.get("distributedInfo") if isinstance(tree, dict) else None
    told = [about.get(key) for key in ("rank", "world_size")] if isinstance(about, dict) else [None, None]
    rank, ranks = (value if type(value) is int else None for value in told)
    return rank, ranks


def refuse_other_runs(parts: Sequence[Samples], names: Sequence[object]) -> None:
    """Refuse traces that cannot be of one run, or are of one process.

    Raises
    ------
    FileFormatError
        Naming two of them.
    """
    for (at, one), (also, other) in itertools.combinations(enumerate(parts), 2):
        if one.rank is not None and one.rank == other.rank:
            raise FileFormatError(
                names[also], f"is of process {other.rank}, as is {names[at]}; give one trace of each process of one run"
            )
        for what, here, there in (
            ("process", one.ranks, other.ranks),
            ("microbatch", one.microbatches, other.microbatches),
        ):
            if here is not None and there is not None and here != there:
                plural = "processes" if what == "process" else "microbatches"
                raise FileFormatError(
                    names[also],
                    f"tells of {there} {plural}, {names[at]} of {here}: they are of different runs; give those of one",
                )


def _durations(
    ranges: list[tuple[_Range, Named]], worked: _Worked, skip_steps: int
) -> dict[tuple[int, Kind], list[int]]:
    """Every duration but those of the first steps; occurrences of one name are steps."""
    laps: dict[Named, list[int]] = defaultdict(list)
    for timed, found in sorted(ranges, key=lambda both: both[0].start):
        laps[found].append(worked.ns(timed, found))
    durations: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    for found, values in laps.items():
        durations[found.stage, found.kind] += values[min(skip_steps, len(values) - 1) :]
    return dict(durations)


class _Worked:
    """How long a range has worked, whoever did the work."""

    def __init__(
        self,
        ranges: list[tuple[_Range, Named]],
        operators: Mapping[tuple[object, object], list[int]],
        launches: list[_Launch],
        kernels: Mapping[object, _Kernel],
    ) -> None:
        self._operators, self._kernels = operators, kernels
        self._launches = sorted(launches, key=lambda launch: launch.start)
        self._starts = [launch.start for launch in self._launches]
        self._threads = {(timed.process, timed.thread) for timed, _ in ranges}
        self._devices: dict[tuple[object, object], set[object]] = defaultdict(set)
        for launch in launches:
            self._devices[launch.process, launch.thread].add(kernels[launch.which].device)

    def ns(self, timed: _Range, found: Named) -> int:
        """On a device from the first kernel to the last, else from the first operator on."""
        if self._launches:
            ran = self._ran(timed)
            return max(kernel.end for kernel in ran) - min(kernel.start for kernel in ran) if ran else 0
        own = self._operators.get((timed.process, timed.thread))
        if own is None or found.by != "torch" or found.kind is Kind.BACKWARD_WEIGHT:
            return timed.end - timed.start
        first = bisect.bisect_left(own, timed.start)
        return timed.end - own[first] if first < len(own) and own[first] < timed.end else 0

    def _ran(self, timed: _Range) -> list[_Kernel]:
        """What the range's thread launched meanwhile, and on its devices a thread without ranges: autograd's."""
        mine = timed.process, timed.thread
        within = slice(bisect.bisect_left(self._starts, timed.start), bisect.bisect_left(self._starts, timed.end))
        ran = []
        for launch in self._launches[within]:
            by, kernel = (launch.process, launch.thread), self._kernels[launch.which]
            if by == mine or (
                by not in self._threads and by[0] == mine[0] and kernel.device in self._devices.get(mine, ())
            ):
                ran.append(kernel)
        return ran


def _events(tree: Any, name: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """The complete events, with their place."""
    listed = tree.get("traceEvents") if isinstance(tree, dict) else tree
    if not isinstance(listed, list):
        raise FileFormatError(name, "is no trace: it has no list of events", "$.traceEvents")
    for place, event in enumerate(listed):
        if not isinstance(event, dict):
            raise FileFormatError(name, "an event is an object", f"$.traceEvents[{place}]")
        if event.get("ph") == "X":
            yield place, event


def _timed(event: dict[str, Any], title: str, place: int, name: object) -> _Range:
    """An event whose times are checked; they are in microseconds there."""
    where = f"$.traceEvents[{place}]"
    start, length = _ns(event.get("ts"), name, f"{where}.ts"), _ns(event.get("dur"), name, f"{where}.dur")
    if length < 0:
        raise FileFormatError(name, "must not be negative", f"{where}.dur")
    ids = [event.get(key) for key in ("pid", "tid")]
    if any(isinstance(value, dict | list) for value in ids):
        raise FileFormatError(name, "pid and tid are numbers or text", where)
    return _Range(title, ids[0], ids[1], start, start + length)


def _ns(value: Any, name: object, where: str) -> int:
    if isinstance(value, str) and len(value) < 40:  # some versions write numbers as text
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileFormatError(name, "expected a number of microseconds", where)
    if abs(value) > MAX_AMOUNT // 1000:
        raise FileFormatError(name, "is beyond 2^62 ns", where)
    return round(value * 1000)


def _correlation(event: dict[str, Any]) -> object:
    args = event.get("args")
    found = args.get("correlation") if isinstance(args, dict) else None
    return found if isinstance(found, int | str) else None
