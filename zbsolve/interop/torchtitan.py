"""TorchTitan: the CSV that it loads, and the settings with which it builds the stages that the CSV is for.

TorchTitan takes the order from the CSV, but how many stages a rank holds, and which, from the *name* of the schedule:

==================  ==========================  =======================================
placement           name                        stages of a rank
==================  ==========================  =======================================
linear              ``PipelineScheduleSingle``  one
looped              ``PipelineScheduleMulti``   rank, rank + ranks, ...; two, or as many as the parts listed
v                   ``ZBVZeroBubble``           rank, and 2 ranks - 1 - rank
==================  ==========================  =======================================

Source: https://github.com/pytorch/torchtitan, ``torchtitan/distributed/pipeline_parallel.py`` and its configuration,
of versions 0.2 (TOML), 0.3 and main (Python and flags).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from zbsolve.errors import InvalidInput, ProblemError
from zbsolve.interop.layers import layers_by_stage
from zbsolve.interop.node_tables import layout_of
from zbsolve.interop.refuse import refuse_replicas, refuse_slices
from zbsolve.interop.torch import torch_csv_bytes
from zbsolve.problem import Problem
from zbsolve.timetable import Timetable

__all__ = ["VERSIONS", "known_version", "torchtitan_files", "torchtitan_settings"]


@dataclass(frozen=True, slots=True)
class _Style:
    """How a version calls things."""

    parts: str
    head: str
    counts_microbatches: bool
    toml: bool


_STYLES = {
    "0.2": _Style("module_fqns_per_model_part", "output", counts_microbatches=False, toml=True),
    "0.3": _Style("module_fqns_per_model_part", "lm_head", counts_microbatches=False, toml=False),
    "main": _Style("pipeline_parallel_module_fqns_per_model_part", "lm_head", counts_microbatches=True, toml=False),
}

VERSIONS = tuple(_STYLES)
"""Versions whose settings are known."""


def known_version(asked: str | None = None) -> str:
    """The version to write for: the one asked for, else the one installed, else the last released one that is known.

    Raises
    ------
    InvalidInput
        If its settings are not known.
    """
    if asked is None:
        try:
            asked = version("torchtitan")
        except PackageNotFoundError:
            return "0.3"
    found = asked if asked in _STYLES else ".".join(asked.split(".")[:2])
    if found not in _STYLES:
        raise InvalidInput(
            f"the settings of TorchTitan {asked[:40]!r} are not known; choose one of {', '.join(VERSIONS)}"
        )
    return found


def torchtitan_settings(
    problem: Problem, csv: str, *, layers: Sequence[int] | None = None, titan: str = "0.3"
) -> dict[str, dict[str, Any]]:
    """The settings with which TorchTitan builds the stages of a problem, by section.

    Parameters
    ----------
    problem
        Its placement has to be linear, looped or v.
    csv
        Path of the CSV, as TorchTitan is to find it.
    layers
        How many of the model's layers each stage holds; default TorchTitan's own, even split.
    titan
        One of `VERSIONS`.

    Raises
    ------
    ProblemError
        If TorchTitan cannot build the placement, with the reason.
    InvalidInput
        If `layers` do not fit.
    """
    refuse_slices(problem, "TorchTitan")
    refuse_replicas(problem, "TorchTitan")
    placement, style = problem.placement, _STYLES[titan]
    chunks, layout = placement.stages // placement.ranks, layout_of(placement)
    if layout == "other":
        raise ProblemError(
            "TorchTitan builds one stage a rank, stages looped over the ranks, or a V of two a rank, as the name of "
            f"the schedule says; it cannot build the {placement.name} placement, whatever the CSV says"
        )
    if placement.ranks < 2:
        raise ProblemError("TorchTitan has no pipeline on one rank: a degree of 1 turns it off")
    if layout == "looped" and chunks > 2 and layers is None:
        raise ProblemError(
            f"TorchTitan builds two stages a rank unless the parts are listed, here are {chunks}; say how many layers "
            "each stage holds (--layers)"
        )
    name = "ZBVZeroBubble" if layout == "v" else "PipelineScheduleSingle" if chunks == 1 else "PipelineScheduleMulti"
    parallelism: dict[str, Any] = {
        "pipeline_parallel_degree": placement.ranks,
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_schedule_csv": csv,
    }
    settings = {"parallelism": parallelism}
    if style.counts_microbatches:
        parallelism["num_pp_microbatches"] = problem.microbatches
    else:
        parallelism["pipeline_parallel_microbatch_size"] = 1
        settings["training"] = {"local_batch_size": problem.microbatches}
    if layers is not None:
        parallelism[style.parts] = _parts(layers, placement.stages, style.head)
    return settings


def _parts(layers: Sequence[int], stages: int, head: str) -> list[list[str]]:
    """The modules of each stage, by TorchTitan's names."""
    parts = [[f"layers.{layer}" for layer in own] for own in layers_by_stage(layers, stages)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def torchtitan_files(
    timetable: Timetable, csv: str, *, layers: Sequence[int] | None = None, titan: str | None = None
) -> tuple[bytes, bytes]:
    """The CSV and the settings, as `torchtitan_settings` gives them: TOML for 0.2, Python and flags for later versions.

    Raises
    ------
    ProblemError, OrderError, InvalidInput
        As `torchtitan_settings` and `zbsolve.interop.torch.write_torch_csv`.
    """
    chosen = known_version(titan)
    settings = torchtitan_settings(timetable.problem, csv, layers=layers, titan=chosen)
    content, _ = torch_csv_bytes(timetable, csv)
    return content, _text(settings, chosen).encode()


def _text(settings: dict[str, dict[str, Any]], titan: str) -> str:
    style = _STYLES[titan]
    about = [
        f"# settings of TorchTitan {titan} for this schedule; the path of the CSV is from where you start it",
        *(
            []
            if style.counts_microbatches
            else ["# microbatches are local_batch_size / pipeline_parallel_microbatch_size: scale both alike"]
        ),
    ]
    lines: list[str] = []
    for section, values in settings.items():
        if style.toml:
            lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        else:
            lines += [f"config.{section}.{key} = {json.dumps(value)}" for key, value in values.items()]
    if not style.toml:
        flags = [
            f"--{section}.{key} {json.dumps(value) if ' ' in str(value) else value}"
            for section, values in settings.items()
            for key, value in values.items()
            if not isinstance(value, list)
        ]
        about.append(f"# in a function of your config registry, or as flags: {' '.join(flags)}")
    return "\n".join([*about, *lines]) + "\n"
