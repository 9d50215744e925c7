"""TorchTitan, Primus, the zero-bubble code, Megatron-LM and plain tables get what they expect, or a reason."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.helpers import call, call_json, error_of, put_timetable, small_timetable
from tests.interop import recorded
from tests.strategies import problems, random_order
from zbsolve.catalog import baseline
from zbsolve.errors import InvalidInput, ProblemError
from zbsolve.interop.megatron import megatron_layout
from zbsolve.interop.primus import primus_json
from zbsolve.interop.refuse import COMPUTE, refuse_other_operations
from zbsolve.interop.tidy import COLUMNS, tidy_csv
from zbsolve.interop.torch import torch_csv_bytes
from zbsolve.interop.torch.read import parse_torch_csv
from zbsolve.interop.torchtitan import VERSIONS, known_version, torchtitan_files, torchtitan_settings
from zbsolve.interop.zero_bubble import zero_bubble_json
from zbsolve.metrics import memory_curve
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp, Timetable

EXAMPLES = Path(__file__).parents[2] / "examples"

LAYOUTS = st.one_of(
    st.integers(2, 4).map(Placement.linear),
    st.tuples(st.integers(2, 3), st.integers(2, 3)).map(lambda t: Placement.looped(*t)),
    st.integers(2, 4).map(Placement.v),
)

OTHERS = [Placement.wave(2, 4), Placement.custom([1, 0]), Placement.custom([0, 1, 1]), Placement.bidirectional(2)]


def uniform(placement: Placement, microbatches: int = 3) -> Problem:
    profile = Profile.uniform(placement.stages, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000)
    return Problem(profile=profile, placement=placement, microbatches=microbatches)


def first_in_first_out(problem: Problem, seed: int, *, fused: bool) -> Timetable:
    """A random order in which every stage takes the microbatches in turn."""
    count: dict[tuple[Kind, int], int] = defaultdict(int)
    rows = []
    for row in random_order(problem, seed, fused=float(fused)).rows:
        made = []
        for op in row:
            made.append(Op(op.kind, op.stage, count[op.kind, op.stage]))
            count[op.kind, op.stage] += 1
        rows.append(tuple(made))
    return simulate(problem, Order(tuple(rows)))


def mixed() -> Timetable:
    """Split and fused backwards in one order."""
    forward, both = Kind.FORWARD, Kind.BACKWARD
    into, weight = Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
    first = [(forward, 0), (forward, 1), (both, 0), (into, 1), (weight, 1)]
    second = [(forward, 0), (into, 0), (weight, 0), (forward, 1), (both, 1)]
    rows = (tuple(Op(kind, stage, j) for kind, j in row) for stage, row in enumerate((first, second)))
    return simulate(uniform(Placement.linear(2), 2), Order(tuple(rows)))


def some(placement: Placement, seed: int = 0, fused: float = 0.3) -> Timetable:
    problem = uniform(placement)
    return simulate(problem, random_order(problem, seed, fused=fused))


def adapter(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded_in_primus(path: Path) -> Any:
    functions = recorded.functions(recorded.PRIMUS_FUNCTIONS)
    names = {"FuncType": functions, "SchedulerNode": recorded.PrimusNode}
    with recorded.installed(primus__core__pipeline_parallel__scheduler__scheduler_node=names):
        return adapter("primus_adapter").schedule(str(path))


def loaded_in_zero_bubble(path: Path) -> tuple[recorded.ZeroBubbleConfig, list[list[recorded.ZeroBubbleNode]]]:
    names = {
        "FuncType": recorded.functions(recorded.ZERO_BUBBLE_FUNCTIONS),
        "GraphConfig": recorded.ZeroBubbleConfig,
        "ScheduledNode": recorded.ZeroBubbleNode,
    }
    passes = {"run_communication_passes": lambda config, order, *none: (config, order)}
    with recorded.installed(
        megatron__core__pipeline_parallel__zerobubble__scheduler__graph=names,
        megatron__core__pipeline_parallel__zerobubble__scheduler__communication=passes,
    ):
        return adapter("zero_bubble_adapter").nodes(str(path))


class TestPrimus:
    @settings(max_examples=40, deadline=None)
    @given(problem=problems(placement=LAYOUTS), seed=st.integers(0, 2**32), fused=st.booleans())
    def test_tables_are_what_primus_builds(self, tmp_path_factory, problem, seed, fused):
        path = tmp_path_factory.mktemp("primus") / "x.json"
        path.write_text(primus_json(first_in_first_out(problem, seed, fused=fused))[0])
        told = json.loads(path.read_text())
        made = loaded_in_primus(path)
        placement = problem.placement
        assert (told["pp_size"], told["micro_batches"]) == (placement.ranks, problem.microbatches)
        assert made.last_pp_stage_rank() == placement.routes[0][-1]
        kinds: set[str] = set()
        for rank, row in enumerate(made.generate_schedule_table()):
            wanted: list[tuple[Any, ...]] = []
            for node in row:
                what = node.func_type.name
                if what in ("SF", "SB", "RF", "RB"):
                    continue
                kinds.add(what)
                if what == "W":
                    continue
                ends = recorded.primus_neighbours(
                    told["layout"], rank, node.chunk, what == "F", placement.ranks, told["vpp_size"]
                )
                letter = "F" if what == "F" else "B"
                if ends[0] is not None:
                    args = {"from_pp_rank": ends[0][0], "to_pp_rank": rank, "recv_from_chunk": ends[0][1]}
                    wanted.append((f"R{letter}", node.mini_batch, node.chunk, args))
                if ends[1] is not None:
                    args = {"from_pp_rank": rank, "to_pp_rank": ends[1][0], "send_to_chunk": ends[1][1]}
                    wanted.append((f"S{letter}", node.mini_batch, node.chunk, args))
            given_ = [(n.func_type.name, n.mini_batch, n.chunk, n.args) for n in row if n.func_type.name[0] in "SR"]
            assert sorted(given_, key=str) == sorted(wanted, key=str)
        assert not {"BW", "B"} <= kinds
        assert ends_even_if_all_block(made.schedule_table)

    def test_every_node_has_what_it_needs_ahead_of_it(self, tmp_path):
        path = tmp_path / "x.json"
        path.write_text(primus_json(first_in_first_out(uniform(Placement.v(3)), 1, fused=False))[0])
        for row in loaded_in_primus(path).schedule_table:
            place = {(n.func_type.name, n.mini_batch, n.chunk): i for i, n in enumerate(row)}
            for (what, microbatch, chunk), at in place.items():
                before = {"F": ["RF"], "B": ["RB", "F"], "BW": ["RB", "F"], "W": ["B"], "SF": ["F"], "SB": ["B", "BW"]}
                for needed in before.get(what, []):
                    assert place.get((needed, microbatch, chunk), -1) < at


def ends_even_if_all_block(tables: list[list[recorded.PrimusNode]]) -> bool:
    """Run the tables with sends and receives that both wait for the other end."""
    at = [0] * len(tables)
    offered: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(tables):
            while at[rank] < len(row):
                node = row[at[rank]]
                what = node.func_type.name
                if what[0] in "SR":
                    args = node.args
                    chunk = args.get("send_to_chunk", node.chunk) if what[0] == "S" else node.chunk
                    message = (what[1], args["from_pp_rank"], args["to_pp_rank"], node.mini_batch, chunk)
                    offered[message].add(what[0])
                    if len(offered[message]) < 2 and args["from_pp_rank"] != args["to_pp_rank"]:
                        break
                at[rank] += 1
                moved = True
    return all(reached == len(row) for reached, row in zip(at, tables, strict=True))


class TestZeroBubble:
    @settings(max_examples=40, deadline=None)
    @given(problem=problems(placement=LAYOUTS), seed=st.integers(0, 2**32), fused=st.booleans())
    def test_nodes_are_what_the_code_asks_of_them(self, tmp_path_factory, problem, seed, fused):
        path = tmp_path_factory.mktemp("zb") / "x.json"
        path.write_text(zero_bubble_json(first_in_first_out(problem, seed, fused=fused))[0])
        config, order = loaded_in_zero_bubble(path)
        placement = problem.placement
        groups = placement.stages
        assert (config.n_stages, config.n_micro) == (placement.ranks, problem.microbatches)
        assert config.n_stages * config.max_chunks == groups
        by_key = {(n.type.name, n.layer_group_idx, n.microbatch): n for row in order for n in row}
        assert len(by_key) == sum(map(len, order))
        sends_to: dict[tuple[Any, ...], int] = {}
        for rank, row in enumerate(order):
            assert [n.start_time for n in row] == sorted(n.start_time for n in row)
            for node in row:
                assert node.stage == rank
                assert placement.stages_of(rank)[node.chunk] == node.layer_group_idx
                name, group = node.type.name, node.layer_group_idx
                before = (
                    ("F", group - 1)
                    if name == "F"
                    else ("B", group)
                    if name == "W"
                    else ("F", group)
                    if group == groups - 1
                    else (name, group + 1)
                )
                if before == ("F", -1):
                    assert node.recv_peer_stage is None
                    continue
                needed = by_key[(*before, node.microbatch)]  # there, or the code cannot find it
                assert needed.completion_time <= node.start_time
                other = needed.stage if needed.stage != rank else None
                assert node.recv_peer_stage == other
                if other is not None:
                    assert (rank - other) % placement.ranks in (1, placement.ranks - 1)
                    sends_to[(*before, node.microbatch)] = rank
        for key, node in by_key.items():
            assert node.send_peer_stage == sends_to.get(key)

    def test_mixed_backwards_are_split_and_that_is_said(self):
        for emit in (zero_bubble_json, primus_json):
            text, (note,) = emit(mixed())
            assert '"BW"' not in text
            assert "one kind of backward in a schedule: 2 that were fused are split" in note
            text, notes = emit(first_in_first_out(uniform(Placement.linear(2)), 0, fused=True))
            assert '"BW"' in text
            assert notes == ()

    def test_data_in_another_order_is_refused(self):
        forward, both = Kind.FORWARD, Kind.BACKWARD
        first = [Op(forward, 0, 0), Op(forward, 0, 1), Op(both, 0, 0), Op(both, 0, 1)]
        second = [Op(forward, 1, 1), Op(forward, 1, 0), Op(both, 1, 0), Op(both, 1, 1)]
        timetable = simulate(uniform(Placement.linear(2), 2), Order((tuple(first), tuple(second))))
        for emit in (zero_bubble_json, primus_json):
            with pytest.raises(ProblemError, match="where F0 of stage 0 stands in the one, F1 of stage 1 stands in"):
                emit(timetable)


@pytest.mark.parametrize("placement", OTHERS, ids=lambda p: f"{p.name}{p.routes[0]}")
def test_placements_that_cannot_be_built_are_refused_with_the_reason(placement):
    timetable = some(placement)
    for emit in (primus_json, zero_bubble_json, lambda t: torchtitan_files(t, "x.csv")):
        with pytest.raises(ProblemError, match=r"looped|each stage on one rank"):
            emit(timetable)
    with pytest.raises(ProblemError, match=r"choose linear or looped|each stage on one rank"):
        megatron_layout(timetable.problem, [1] * placement.stages)


def test_schedules_without_backwards_are_refused_where_the_tool_trains():
    problem = replace(uniform(Placement.linear(2)), forward_only=True)
    timetable = simulate(problem, baseline("forward-only", problem))
    for emit in (primus_json, zero_bubble_json, lambda t: torchtitan_files(t, "x.csv")):
        with pytest.raises(ProblemError, match="without backwards"):
            emit(timetable)
    assert tidy_csv(timetable).count("forward") == 6


class TestTorchTitan:
    @pytest.mark.parametrize("titan", VERSIONS)
    @pytest.mark.parametrize(
        "placement", [Placement.linear(3), Placement.looped(3, 2), Placement.looped(2, 4), Placement.v(3)], ids=str
    )
    def test_it_builds_the_stages_that_the_csv_is_for(self, placement, titan):
        layers = [2 + stage % 2 for stage in range(placement.stages)]
        timetable = some(placement)
        content, text = torchtitan_files(timetable, "s.csv", layers=layers, titan=titan)
        assert content == torch_csv_bytes(timetable, "s.csv")[0]
        told = torchtitan_settings(timetable.problem, "s.csv", layers=layers, titan=titan)
        own = told["parallelism"]
        assert read_settings(text.decode()) == told
        stages_of = titan_stages_of()
        for rank in range(placement.ranks):
            built = stages_of(rank, placement.ranks, own["pipeline_parallel_schedule"], placement.stages)
            assert tuple(sorted(built)) == placement.stages_of(rank)
        parts = own[next(key for key in own if "fqns" in key)]
        assert [sum(name.startswith("layers.") for name in part) for part in parts] == layers
        flat = [name for part in parts for name in part]
        assert flat[0] == "tok_embeddings"
        assert flat[-2:] == ["norm", "output" if titan == "0.2" else "lm_head"]
        assert flat[1:-2] == [f"layers.{n}" for n in range(sum(layers))]
        if titan == "main":
            assert own["num_pp_microbatches"] == 3
        else:
            assert told["training"]["local_batch_size"] // own["pipeline_parallel_microbatch_size"] == 3

    def test_torch_knows_the_names_of_the_schedules(self):
        from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

        for placement in (Placement.linear(2), Placement.looped(2, 2), Placement.v(2)):
            name = torchtitan_settings(uniform(placement), "x")["parallelism"]["pipeline_parallel_schedule"]
            assert issubclass(get_schedule_class(name), PipelineScheduleSingle) == (placement.name == "linear")

    def test_an_installed_torchtitan_takes_the_settings(self):
        titan = pytest.importorskip("torchtitan.config", exc_type=ImportError)
        told = torchtitan_settings(uniform(Placement.v(2)), "x", layers=[1, 1, 1, 1], titan=known_version())
        assert titan.ParallelismConfig(**told["parallelism"]).pipeline_parallel_degree == 2

    def test_refusals(self):
        with pytest.raises(ProblemError, match="a degree of 1 turns it off"):
            torchtitan_settings(uniform(Placement.linear(1)), "x")
        with pytest.raises(ProblemError, match="two stages a rank unless the parts are listed"):
            torchtitan_settings(uniform(Placement.looped(2, 3)), "x")
        with pytest.raises(InvalidInput, match="layers were given for 2 stages"):
            torchtitan_settings(uniform(Placement.linear(3)), "x", layers=[1, 2])
        with pytest.raises(InvalidInput, match=r"the settings of TorchTitan '9.9' are not known"):
            known_version("9.9")
        assert known_version("0.2.1") == "0.2"


def titan_stages_of() -> Any:
    """TorchTitan's own mapping where it is installed, else the recorded one."""
    try:
        from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping
    except ImportError:
        return recorded.titan_stages
    return _get_pp_rank_to_stage_indices_mapping


def read_settings(text: str) -> dict[str, Any]:
    """As TorchTitan would: TOML, or statements on its configuration."""
    if "[parallelism]" in text:
        return tomllib.loads(text)
    config = SimpleNamespace(parallelism=SimpleNamespace(), training=SimpleNamespace())
    exec(text, {"config": config})
    found = {"parallelism": vars(config.parallelism)}
    return found | ({"training": vars(config.training)} if vars(config.training) else {})


class TestMegatron:
    @pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (2, 1), (4, 1), (2, 3)])
    def test_layers_of_the_stages(self, ranks, chunks):
        placement = Placement.looped(ranks, chunks)
        layers = [(3 * stage) % 11 + 1 for stage in range(placement.stages)]
        layout = megatron_layout(uniform(placement), layers)
        stages = recorded.megatron_stages(layout)
        assert [stage.count("t") for stage in stages] == layers
        assert layout.startswith("E")
        assert layout.endswith("L")
        assert sum(stage.count("E") + stage.count("L") for stage in stages) == 2

    def test_it_reads_like_this(self):
        assert megatron_layout(uniform(Placement.linear(4)), [2, 4, 0, 12]) == "Ett|tttt||t*12L"

    def test_an_installed_megatron_takes_the_layout(self):
        layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout", exc_type=ImportError)
        layers = [3, 9, 2, 0, 4, 1]
        made = layouts.PipelineParallelLayerLayout(megatron_layout(uniform(Placement.looped(2, 3)), layers), 2)
        made.validate_layer_layout(num_layers=sum(layers), mtp_num_layers=None)
        for rank in range(2):
            own = [[layer.name for layer in chunk].count("decoder") for chunk in made.layout[rank]]
            assert own == [layers[stage] for stage in Placement.looped(2, 3).stages_of(rank)]

    def test_refusals(self):
        for layers in ([1], [0, 0], [-1, 2], [True, 1], [10**7, 1]):
            with pytest.raises(InvalidInput):
                megatron_layout(uniform(Placement.linear(2)), layers)


class TestTable:
    @settings(max_examples=40, deadline=None)
    @given(problem=problems(), seed=st.integers(0, 2**32))
    def test_an_operation_a_row(self, problem, seed):
        timetable = simulate(problem, random_order(problem, seed))
        rows = list(csv.DictReader(io.StringIO(tidy_csv(timetable))))
        assert tuple(rows[0]) == COLUMNS
        read: list[list[TimedOp]] = [[] for _ in timetable.rows]
        for row in rows:
            op = Op(Kind(row["kind"]), int(row["stage"]), int(row["microbatch"]))
            read[int(row["rank"])].append(TimedOp(op, int(row["start_ns"]), int(row["end_ns"])))
        assert read == [list(row) for row in timetable.rows]
        for row in rows:
            assert int(row["duration_ns"]) == int(row["end_ns"]) - int(row["start_ns"])
            assert problem.placement.stages_of(int(row["rank"]))[int(row["chunk"])] == int(row["stage"])
            assert problem.placement.routes[int(row["route"])][int(row["stage"])] == int(row["rank"])
        for rank, curve in enumerate(memory_curve(timetable)):
            held = max((int(r["held_bytes"]) for r in rows if int(r["rank"]) == rank), default=0)
            assert held >= max(size for _, size in curve[1:]) if len(curve) > 1 else True


def test_operations_that_a_tool_has_no_word_for_are_refused():
    timetable = some(Placement.linear(2), fused=0.0)
    few = frozenset({Kind.FORWARD, Kind.BACKWARD_INPUT})
    with pytest.raises(ProblemError, match=r"the tool has no word for backward_weight \(W\d of stage \d, rank \d\)"):
        refuse_other_operations(timetable, few, "the tool")
    refuse_other_operations(timetable, COMPUTE, "the tool")
    whole = Timetable(problem=timetable.problem, rows=((TimedOp(Op(Kind.FORWARD, 0, None), 0, 1),),))
    with pytest.raises(ProblemError, match="has no word for forward"):
        refuse_other_operations(whole, COMPUTE, "the tool")


class TestVerb:
    @pytest.mark.parametrize(
        "target", ["torchtitan", "csv", "primus", "zero-bubble", "megatron-layout", "torch-csv-comms"]
    )
    def test_each(self, tmp_path, target):
        path = put_timetable(tmp_path, small_timetable())
        extra = ("--layers", "3,4") if target in ("torchtitan", "megatron-layout") else ()
        shown = call("emit", path, "--to", target, *extra).stdout
        out = tmp_path / "out"
        files = call_json("emit", path, "--to", target, *extra, "-o", out)["files"]
        assert out.read_text() == shown.replace("schedule.csv", "out")
        assert files[0] == str(out)
        assert len(files) == (2 if target.startswith("torch") else 1)
        told = call_json("emit", path, "--to", target, *extra)
        assert told["format"] == target
        assert told.get("rows") or told.get("content") or told.get("text")

    def test_options(self, tmp_path):
        path = put_timetable(tmp_path, small_timetable())
        emit = ("emit", path, "--to")
        assert call(*emit, "megatron-layout", "--layers", "3,4").stdout == "Ettt|ttttL\n"
        assert "needs --layers" in error_of(call(*emit, "megatron-layout", code=2))
        assert "no list of layers" in error_of(call(*emit, "megatron-layout", "--layers", "3,x", code=2))
        assert "layers were given for 1 stage" in error_of(call(*emit, "torchtitan", "--layers", "3", code=2))
        assert "has no use for --layers" in error_of(call(*emit, "csv", "--layers", "3,4", code=2))
        assert "are not known" in error_of(call(*emit, "torchtitan", "--torchtitan", "7", code=2))
        call(*emit, "torchtitan", "--torchtitan", "0.2", "-o", tmp_path / "s.csv")
        assert tomllib.loads((tmp_path / "s.csv.settings").read_text())["parallelism"]["pipeline_parallel_degree"] == 2


def ending() -> Timetable:
    """A timetable whose iteration ends with reductions and optimizers."""
    profile = Profile.uniform(2, forward_ns=2, backward_input_ns=2, backward_weight_ns=1)
    stages = tuple(replace(stage, optimizer_ns=3, grad_reduce_ns=4) for stage in profile.stages)
    asked = Problem(profile=replace(profile, stages=stages), placement=Placement.linear(2), microbatches=3)
    return simulate(asked, baseline("1f1b", asked))


def test_a_table_has_what_ends_the_iteration():
    rows = list(csv.DictReader(io.StringIO(tidy_csv(ending()))))
    ends = [row for row in rows if row["kind"] in ("reduce_gradient", "optimizer")]
    assert [row["microbatch"] for row in ends] == [""] * 4


@pytest.mark.parametrize("csv_format", ["compute_only", "compute_comms"])
def test_what_torch_leaves_out_is_put_back(csv_format):
    timetable = ending()
    content, _ = torch_csv_bytes(timetable, "x.csv", csv_format=csv_format)
    schedule = parse_torch_csv(content, "x.csv")
    read = schedule.timetable(schedule.problem(timetable.problem.profile))
    assert read.rows == timetable.rows
