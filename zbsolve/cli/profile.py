"""`zbsolve profile`: make a profile by measuring, take one from another tool, or look at one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from zbsolve.cli import _inputs
from zbsolve.cli._figures import grid, table
from zbsolve.cli._output import FILE, Output, output_option, stdout_to_stderr, talk_options
from zbsolve.cli._profile_import import import_options, imported
from zbsolve.cli._text import inert
from zbsolve.units import counted, format_bytes, format_ns, parse_bytes

if TYPE_CHECKING:
    from zbsolve.profile import Profile

__all__ = ["profile"]


@click.group()
def profile() -> None:
    """Measure a profile, import one or look at one."""


@profile.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@output_option("Write the profile there.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="Measured runs of every operation.",
)
@click.option(
    "--warmup", type=click.IntRange(0, 100_000), default=3, show_default=True, help="Runs before that, not counted."
)
@click.option(
    "--threads", type=click.IntRange(1, 4096), default=1, show_default=True, help="On the CPU, as a rank will have."
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "processor"]),
    default="wall",
    show_default=True,
    help="On a busy CPU, processor leaves out what other programs take.",
)
@click.option("--device", help="cpu, cuda, cuda:1; default where the model lies.")
@click.option("--host-bandwidth", metavar="SIZE", help="To host memory and back a second, such as 25GB; else measured.")
@click.option("--name", default="", help="Name of the profile.")
@talk_options
def measure(
    *,
    target: str,
    output: str | None,
    repeats: int,
    warmup: int,
    threads: int,
    clock: Literal["wall", "processor"],
    device: str | None,
    host_bandwidth: str | None,
    name: str,
    out: Output,
) -> None:
    """Measure the stages that MODULE:FUNCTION returns.

    The function takes no arguments and returns (stages, sample, loss_fn): the modules from input to
    loss, (inputs, target) of one microbatch, and loss_fn(output, target). The current directory is
    searched for MODULE, which may also be a path such as models/gpt.py.
    """
    from zbsolve.files import profile_bytes

    bandwidth = None if host_bandwidth is None else parse_bytes(host_bandwidth, "--host-bandwidth")
    module = target.rpartition(":")[0]
    out = out.for_file(output, module, module.replace(".", os.sep) + ".py")
    sys.path.insert(0, os.getcwd())
    with stdout_to_stderr():  # what the model prints is talk, not our result
        from zbsolve.executor.measure import load_target, measure_profile

        stages, sample, loss_fn = load_target(target)
        out.say(f"measuring {counted(len(stages), 'stage')}")
        made = measure_profile(
            stages,
            sample,
            loss_fn,
            repeats=repeats,
            warmup=warmup,
            device=device,
            threads=threads,
            clock=clock,
            host_bandwidth=bandwidth,
            name=name,
            warn=out.say,
        )
    if output is not None:
        out.write(output, profile_bytes(made))
    _show(made, out)
    if output is None:
        out.say("add -o FILE to keep this profile")


@profile.command("import")
@import_options
def import_(*, asked: dict[str, Any], output: str | None, out: Output) -> None:
    """Make a profile from what another tool has measured.

    \b
    torch-profiler  traces of torch's profiler, also .json.gz, one a rank: ranges of
                    torch's pipelining runtime (PP:0F0) or of zbsolve's executor
    zero-bubble     logs of the zero-bubble code: its lines "profiling conclusion"
    nsight          nsys stats --format csv --report nvtx_sum (or nvtx_gpu_proj_sum)
    csv             stage,forward_ms,backward_input_ms,backward_weight_ms,...

    Times are medians, their interquartile ranges stand in the source. Bytes and links, of
    which durations say nothing, come from options; what is missing or assumed is said.
    """  # noqa: D301
    from zbsolve.files import profile_bytes

    out = out.for_file(output, *asked["files"], asked["like"])
    made = imported(asked, out)
    if output is not None:
        out.write(output, profile_bytes(made))
    _show(made, out)
    if output is None:
        out.say("add -o FILE to keep this profile")


@profile.command()
@click.argument("profile_file", metavar="PROFILE", type=FILE)
@talk_options
def show(*, profile_file: str, out: Output) -> None:
    """Show the stages of PROFILE with their sums, and how unequal they are."""
    _show(_inputs.read_profile(profile_file), out)


DURATIONS = {
    "forward_ns": "forward",
    "backward_input_ns": "backward input",
    "backward_weight_ns": "backward weight",
    "backward_ns": "backward fused",
}
SIZES = {
    "activation_bytes": "activation",
    "backward_weight_bytes": "kept for weights",
    "workspace_bytes": "workspace",
    "static_bytes": "static",
    "output_bytes": "output",
}


def _show(shown: Profile, out: Output) -> None:
    stages = shown.stages
    sums = {field: sum(getattr(stage, field) for stage in stages) for field in (*DURATIONS, *SIZES)}
    work = [
        stage.forward_ns + min(stage.backward_ns, stage.backward_input_ns + stage.backward_weight_ns)
        for stage in stages
    ]
    imbalance = max(work) * len(work) / sum(work) - 1 if sum(work) else 0.0
    if out.as_json:
        fields = ("name", *DURATIONS, *SIZES, "checkpoint_bytes", "offload_bytes", "optimizer_ns", "grad_reduce_ns")
        out.data(
            {
                "name": shown.name,
                "stages": [{field: getattr(stage, field) for field in fields} for stage in stages],
                "sums": sums,
                "imbalance": imbalance,
                "link": {
                    "latency_ns": shown.link.latency_ns,
                    "bytes_per_second": shown.link.bytes_per_second,
                    "queueing": shown.link.queueing,
                },
                "host_link": None
                if shown.host_link is None
                else {
                    "latency_ns": shown.host_link.latency_ns,
                    "to_host_bytes_per_second": shown.host_link.to_host_bytes_per_second,
                    "from_host_bytes_per_second": shown.host_link.from_host_bytes_per_second,
                },
                "source": {f: getattr(shown.source, f) for f in ("host", "device", "split", "samples", "note")},
            }
        )
        return
    sizes = {field: head for field, head in SIZES.items() if sums[field]}  # what no stage has needs no column
    made = table("stage", *DURATIONS.values(), *sizes.values(), title=shown.name or None)
    for number, stage in enumerate(stages):
        label = f"{number} {inert(stage.name)}".rstrip()
        times = [format_ns(getattr(stage, field)) for field in DURATIONS]
        made.add_row(label, *times, *(format_bytes(getattr(stage, field)) for field in sizes))
    made.add_section()
    made.add_row("sum", *(format_ns(sums[field]) for field in DURATIONS), *(format_bytes(sums[f]) for f in sizes))
    out.show(made, grid(_about(shown, imbalance)))


def _about(shown: Profile, imbalance: float) -> list[tuple[str, str]]:
    link, source = shown.link, shown.source
    speed = "" if link.bytes_per_second is None else f" + bytes / {format_bytes(link.bytes_per_second)} per s"
    queueing = {"link": ", one transfer at a time", "sender": ", one transfer at a time out of a rank"}
    speed += queueing.get(link.queueing or "", "")
    special = f", {counted(len(link.overrides), 'ordered pair')} of ranks apart" if link.overrides else ""
    rows = [
        ("imbalance", f"{imbalance:.2%}: most work of a stage / mean work - 1"),
        ("link", f"{format_ns(link.latency_ns)}{speed}{special}"),
    ]
    if (host := shown.host_link) is not None:
        ways = ((host.to_host_bytes_per_second, "out"), (host.from_host_bytes_per_second, "back"))
        rates = [f"bytes / {format_bytes(rate)} per s {way}" for rate, way in ways if rate is not None]
        rows.append(("host memory", " + ".join((format_ns(host.latency_ns), *([", ".join(rates)] if rates else [])))))
    where = ", ".join(text for text in (source.host, source.device) if text)
    if where or source.samples:
        rows.append(("measured", f"{where}, {counted(source.samples, 'sample')}".lstrip(", ")))
    if source.split:
        rows.append(("split by", source.split))
    if source.versions:
        rows.append(("versions", ", ".join(f"{library} {version}" for library, version in source.versions)))
    if source.note:
        rows.append(("note", source.note))
    return rows
