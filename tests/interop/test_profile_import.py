"""Measurements of other tools as profiles: real traces, and whatever a file may hold."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.helpers import call, call_json, error_of, put_profile, small_profile
from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.files import read_profile
from zbsolve.interop.measurements import Reading, import_profile, tool_of
from zbsolve.interop.ranges import operation_of
from zbsolve.interop.samples import Given
from zbsolve.interop.text import json_of
from zbsolve.ops import Kind
from zbsolve.placement import Placement

FIXTURES = Path(__file__).parent / "fixtures"
PIPELINING = [FIXTURES / f"pipelining.rank{rank}.json.gz" for rank in (0, 1)]
EXECUTOR = FIXTURES / "executor.json.gz"
F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def read(content: bytes | str, given: Given | None = None, **options: Any) -> Any:
    data = content.encode() if isinstance(content, str) else content
    return import_profile([(data, "x")], given or Given(), **options)


def ms(profile: Any) -> list[tuple[float, ...]]:
    names = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
    return [tuple(getattr(stage, name) / 1e6 for name in names) for stage in profile.stages]


def event(name: str, ts: float, dur: float, cat: str = "user_annotation", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def trace(*events: dict[str, Any]) -> str:
    return json.dumps({"traceEvents": list(events)})


class TestTorchProfiler:
    def test_real_traces_of_two_ranks(self):
        profile, notes = import_profile([(path.read_bytes(), path) for path in PIPELINING], Given())
        assert len(profile.stages) == 4
        assert profile.source.samples == 8  # four microbatches in two of three steps
        assert profile.source.split == "torch's profiler"
        assert all(stage.forward_ns and stage.backward_weight_ns for stage in profile.stages)
        assert profile.stages[0].backward_input_ns == 0  # torch does nothing there but wait
        assert any(spread.forward_ns for spread in profile.source.spread)
        assert any("memory" in note for note in notes)

    def test_waiting_does_not_count(self):
        """On the second rank most of the forward's range is waiting for the first."""
        tree = json_of(PIPELINING[1].read_bytes(), "x")
        ranges = [e["dur"] * 1000 for e in tree["traceEvents"] if e.get("name", "").startswith("PP:1F")]
        profile, _ = import_profile([(path.read_bytes(), path) for path in PIPELINING], Given())
        assert profile.stages[1].forward_ns < sorted(ranges)[len(ranges) // 2]

    def test_a_real_trace_of_our_executor(self):
        profile, _ = import_profile([(EXECUTOR.read_bytes(), EXECUTOR)], Given(name="mine"))
        assert (len(profile.stages), profile.name, profile.source.samples) == (4, "mine", 8)
        assert all(stage.backward_input_ns for stage in profile.stages)

    def test_what_counts_of_a_range(self):
        op = {"cat": "cpu_op"}
        events = [
            *(event("PP:0F0", 100 * step, 50) for step in range(3)),
            *(event("c10d::recv_", 100 * step + 1, 2, **op) for step in range(3)),
            *(event("aten::mm", 100 * step + 20 + step, 5, **op) for step in range(3)),
            event("PP:0B0", 60, 30),
            event("aten::mm", 70, 5, **op),
            event("PP:0SEND_F0", 90, 30),
        ]
        profile, _ = read(trace(*events))
        assert profile.stages[0].forward_ns == 28_500  # 50 - 21 and 50 - 22; the first step does not count
        assert profile.stages[0].backward_ns == 20_000
        first, _ = read(trace(*events), reading=Reading(skip_steps=0))
        assert first.stages[0].forward_ns == 29_000

    def test_on_a_device_kernels_count(self):
        def kernel(name: str, which: int, ts: float, dur: float, tid: int = 1, device: int = 0) -> list[dict[str, Any]]:
            launch = event("cudaLaunchKernel", ts - 90, 1, "cuda_runtime", args={"correlation": which})
            ran = event(name, ts, dur, "kernel", args={"correlation": which})
            return [launch | {"tid": tid}, ran | {"pid": device, "tid": 7}]

        events = [
            event("PP:0F0", 0, 30),
            event("PP:0F0", 500, 999, "gpu_user_annotation"),
            *kernel("ncclDevKernel_SendRecv", 1, 91, 500),
            *kernel("gemm", 2, 100, 40),
            *kernel("gemm", 3, 110, 45, tid=2),  # autograd's thread
            *kernel("gemm", 4, 111, 400, tid=2, device=1),  # of another rank of this process
            event("PP:0B0", 300, 30),
            *kernel("gemm", 5, 395, 11),
        ]
        profile, _ = read(trace(*events))
        assert (profile.stages[0].forward_ns, profile.stages[0].backward_ns) == (55_000, 11_000)

    def test_pairs_are_left_out(self):
        _, notes = read(trace(event("PP:0F0", 0, 1), event("PP:0B0", 1, 1), event("PP:(0F1;0B1)OVERLAP_F_B", 2, 1)))
        assert "1 pair of operations that ran together are left out" in notes

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("[]", "no range of a pipeline's operation"),
            ("{}", "no list of events"),
            ("[1]", "an event is an object"),
            (trace(event("PP:0F0", 0, -1)), "must not be negative"),
            (trace(event("PP:0F0", 0, 1) | {"dur": None}), "expected a number of microseconds"),
            (trace(event("PP:0F0", 0, 1) | {"ts": True}), "expected a number of microseconds"),
            (trace(event("PP:0F0", 0, 1) | {"pid": []}), "numbers or text"),
            (trace(event("PP:0F0", float("nan"), 1)), "expected a number of microseconds"),
            ('[{"ph":"X","name":"PP:0F0","ts":1e400,"dur":1}]', "expected a number of microseconds"),
            ('[{"ph":"X","name":"PP:0F0","ts":' + "9" * 5000 + ',"dur":1}]', "expected a number of microseconds"),
            ('[{"ph":"X","name":"PP:0F0","ts":1e18,"dur":1}]', "beyond 2^62 ns"),
            ("[" * 100_000, "nested too deeply"),
            ('{"traceEvents": [', "is not JSON"),
            (trace(event("PP:0F0", 0, 1)), "has no whole backward of stage 0"),
            (trace(event("PP:1F0", 0, 1)), "has no forward of stage 0"),
            (trace(event("PP:9999F0", 0, 1)), "at most 4096 stages"),
            (gzip.compress(b"[]", mtime=0)[:-9], "cannot be unpacked"),
            (b"\x1f\x8bnonsense", "cannot be unpacked"),
            (b"{\xff", "not UTF-8"),
        ],
    )
    def test_hostile_traces(self, content, told):
        with pytest.raises(FileFormatError) as raised:
            read(content)
        assert told in str(raised.value)
        assert len(str(raised.value)) < 500

    def test_a_bomb_is_not_unpacked(self, monkeypatch):
        monkeypatch.setattr("zbsolve.interop.text.MAX_FILE_BYTES", 1000)
        with pytest.raises(FileFormatError, match="is larger than"):
            read(gzip.compress(b" " * 2000))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("PP:3F12", (3, F, 12)),
        (":PP:0I1", (0, B, 1)),
        ("torch:PP:0W1, op_id = 7", (0, W, 1)),
        ("PP:0B1", (0, BW, 1)),
        ("F3 of stage 2", (2, F, 3)),
        ("BW3 of stage 2", (2, BW, 3)),
        ("B3 of stage 2", (2, B, 3)),
        ("PP:0SEND_F1", None),
        ("PP:0UNSHARD", None),
        ("send of message 3 for F3 of stage 2", None),
        ("PP:0F1x", None),
        ("PP:" + "9" * 300 + "F1", None),
    ],
)
def test_names_of_ranges(name, found):
    named = operation_of(name)
    assert (None if named is None else (named.stage, named.kind, named.microbatch)) == found


class TestTables:
    def test_samples_units_and_bytes(self):
        profile, notes = read(
            "stage,name,forward_ms,backward_input_us,backward_weight_ns,backward_s,activation_mib,static_bytes\n"
            "0,embedding,18.5,18100,9300000,0.0275,197,7\n"
            "\n"
            "0,,20.5,18100,9300000,0.0275,197,\n"
            '1,"head",1,2,3,0.000004,0.5,8\n'
        )
        assert ms(profile) == [(19.5, 18.1, 9.3, 27.5), (1.0, 0.002, 0.000003, 0.004)]
        assert [stage.activation_bytes for stage in profile.stages] == [197 * 2**20, 2**19]
        assert [(stage.name, stage.static_bytes) for stage in profile.stages] == [("embedding", 7), ("head", 8)]
        assert profile.source.spread[0].forward_ns == 1_000_000
        assert "where nothing is given: --backward-weight-bytes, or" in notes[0]
        assert notes[1] == "transfers take no time: give --latency and --bandwidth, or --like PROFILE"

    def test_a_backward_in_one_piece(self):
        table = "stage,forward_ms,backward_ms\n0,1,3\n1,1,3\n3,1,3\n2,1,3\n"
        profile, notes = read(table)
        assert ms(profile) == [(1.0, 1.5, 1.5, 3.0)] * 4
        assert "stages 0 to 3: backward in one piece only; 0.5 of it is taken to be W" in notes
        assert ms(read(table, Given(weight_share=Fraction(1, 3)))[0])[0] == (1.0, 2.0, 1.0, 3.0)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("stage,forward_ms\n", "no operation of a stage"),
            ("stage,forward_ms,forward_ms\n0,1,1\n", "a column is given twice"),
            ("stage,forward_min\n0,1\n", "'forward_min' is no column"),
            ("stage,forward_ms\n0,1,2\n", "line 2: has 3 cells"),
            ("stage,forward_ms\n0,-1\n", "line 2, column forward_ms: expected a number of ms"),
            ("stage,forward_ms\n0,nan\n", "expected a number of ms"),
            ("stage,forward_ms\n0,1e9\n", "expected a number of ms"),
            ("stage,forward_ms\n0," + "9" * 39 + "\n", "expected a number of ms"),
            ("stage,forward_ms\n0," + "9" * 200_000 + "\n", "cannot be read as CSV"),
            ("stage,forward_ms\n4096,1\n", "expected a stage"),
            ("stage,forward_ms\n-1,1\n", "expected a stage"),
            ("stage,forward_ms,activation_bytes\n0,1,2\n0,1,3\n", "stage 0 has another value above"),
            ("stage,forward_ms,backward_ms\n0,0,0\n", "take no time at all"),
        ],
    )
    def test_hostile_tables(self, content, told):
        with pytest.raises(InvalidInput) as raised:
            read(content)
        assert told in str(raised.value)
        assert len(str(raised.value)) < 400


NSIGHT = """Generating SQLite file x.sqlite from x.nsys-rep
Processing [x.sqlite] with [/opt/nvidia/reports/nvtx_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
40.0,4000,2,2500.0,2000.0,1000,3000,10.0,PushPop,:PP:0F0
40.0,4000,2,2500.0,4000.0,1000,3000,10.0,PushPop,:PP:0F1
20.0,2000,2,1000.0,1000.0,900,1100,10.0,PushPop,":PP:0I0, op_id = 3"
20.0,2000,2,1000.0,900.0,900,1100,10.0,PushPop,:PP:0W0
"""


class TestNsight:
    def test_medians(self):
        profile, notes = read(NSIGHT)
        assert ms(profile) == [(0.003, 0.001, 0.0009, 0.0019)]
        assert "these are the host's times, waiting included; on a GPU use nvtx_gpu_proj_sum" in notes

    def test_projected_to_the_device(self):
        profile, notes = read(
            "Range,Style,Total Proj Time (us),Range Instances,Proj Avg (us),Proj Med (us),Med (us)\n"
            "F0 of stage 0,PushPop,9,1,2.0,1.5,99\nBW0 of stage 0,PushPop,9,1,2.0,2.5,99\n"
        )
        assert ms(profile) == [(0.0015, 0.00125, 0.00125, 0.0025)]
        assert not any("host" in note for note in notes)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (NSIGHT.replace("PP:", "QQ:"), "no range of a pipeline's operation"),
            (NSIGHT.replace(",2000.0,", ",nan,"), "expected a duration, got 'nan'"),
            (NSIGHT.replace(",2000.0,", ",-1,"), "expected a duration"),
            (NSIGHT.replace("(ns)", "(yr)"), "the unit of"),
        ],
    )
    def test_hostile_summaries(self, content, told):
        with pytest.raises(FileFormatError, match=told):
            read(content)

    def test_no_summary(self):
        with pytest.raises(FileFormatError, match="no line with the columns"):
            read("a,b\n1,2\n", tool="nsight")


def conclusion(rank: int, chunks: int = 1) -> str:
    one = "({0},)" if chunks == 1 else "({0}, {0})"
    f, b, w = (one.format(100 * rank + n) for n in (10, 20, 30))
    memory = ", ".join(map(one.format, (4.0, -3.0, -1.0)))
    return f"[Rank{rank}]: rank {rank} profiling conclusion: [{f}, {b}, {w}, 7, {memory}]\n"


class TestZeroBubbleLog:
    def test_a_rank_a_line(self):
        profile, notes = read("starting\n" + conclusion(1) + "iteration 5\n" + conclusion(0))
        assert ms(profile) == [(0.01, 0.02, 0.03, 0.05), (0.11, 0.12, 0.13, 0.25)]
        assert profile.link.latency_ns == 7000
        assert [(s.activation_bytes, s.backward_weight_bytes) for s in profile.stages] == [(4_000_000, 1_000_000)] * 2
        assert any("means" in note for note in notes)

    def test_plain_numbers_of_older_versions(self):
        profile, _ = read("rank 0 profiling conclusion: (10, 20, 30, 7, 4.0, -3.0, -1.0)\n")
        assert ms(profile) == [(0.01, 0.02, 0.03, 0.05)]

    def test_chunks_in_a_v_and_looped(self):
        log = conclusion(0, 2) + conclusion(1, 2)
        placed = {"v": Placement.v(2), "looped": Placement.looped(2, 2)}
        for name, placement in placed.items():
            profile, _ = read(log, reading=Reading(placement=name))
            assert [s.forward_ns for s in profile.stages] == [10_000 + 100_000 * r for r in placement.routes[0]]

    def test_several_files_and_ranks_that_share_a_stage(self):
        files = [(conclusion(rank).encode(), f"rank{rank}.log") for rank in range(4)]
        profile, _ = import_profile(files, Given(), reading=Reading(ranks=2))
        assert [s.forward_ns for s in profile.stages] == [60_000, 260_000]

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("rank 0 profiling conclusion: nothing\n", "has no line such as"),
            ("rank 0 profiling conclusion: [1, 2]\n", "expected F, B, W"),
            ("rank 0 profiling conclusion: [(a,), 2, 3, 4, 5, 6, 7]\n", "expected numbers, got 'a,'"),
            ("rank 0 profiling conclusion: [nan, 2, 3, 4, 5, 6, 7]\n", "negative or beyond reason"),
            ("rank 0 profiling conclusion: [1e300, 2, 3, 4, 5, 6, 7]\n", "negative or beyond reason"),
            ("rank 0 profiling conclusion: [-1, 2, 3, 4, 5, 6, 7]\n", "negative or beyond reason"),
            ("rank 0 profiling conclusion: [((((1, 2, 3, 4, 5, 6, 7]\n", "expected"),
            (conclusion(1), "no conclusion of rank 0"),
            (conclusion(0) + conclusion(1, 2), "different numbers of chunks"),
        ],
    )
    def test_hostile_logs(self, content, told):
        with pytest.raises(FileFormatError) as raised:
            read(content)
        assert told in str(raised.value)

    def test_chunks_that_are_no_v(self):
        three = ", ".join(f"({n}, {n}, {n})" for n in (1, 2, 3))
        with pytest.raises(FileFormatError, match="say --placement looped"):
            read(f"rank 0 profiling conclusion: [{three}, 7, {three}]\n")


def test_who_has_measured_is_told_by_content():
    assert [tool_of(path.read_bytes(), path) for path in (*PIPELINING, EXECUTOR)] == ["torch-profiler"] * 3
    assert tool_of(NSIGHT.encode(), "x") == "nsight"
    assert tool_of(conclusion(0).encode(), "x") == "zero-bubble"
    assert tool_of(b"\xef\xbb\xbfstage,forward_ms\n", "x") == "csv"
    with pytest.raises(FileFormatError, match="say --from"):
        tool_of(b"hello", "x")
    with pytest.raises(FileFormatError, match="several tools"):
        import_profile([(NSIGHT.encode(), "x"), (b"stage,forward_ms\n", "y")], Given())


@settings(max_examples=150, deadline=None)
@given(
    data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)),
    tool=st.sampled_from(["torch-profiler", "zero-bubble", "nsight", "csv", None]),
)
def test_anything_else_is_refused_in_one_line(data, tool):
    with pytest.raises(InvalidInput) as raised:
        read(data, tool=tool)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


class TestVerb:
    def test_from_traces_to_a_timetable(self, tmp_path):
        path, best = tmp_path / "p.json", tmp_path / "t.json"
        sizes = ("--activation-bytes", "4MiB", "--backward-weight-bytes", "1MiB,1MiB,1MiB,2MiB")
        link = ("--latency", "50us", "--bandwidth", "10GB")
        told = call("profile", "import", *PIPELINING, *sizes, *link, "--name", "two ranks", "-o", path)
        assert "two ranks" in told.stdout
        assert "pieces only" in told.stderr
        profile = read_profile(path)
        assert [stage.backward_weight_bytes for stage in profile.stages] == [2**20] * 3 + [2**21]
        assert (profile.link.latency_ns, profile.link.bytes_per_second) == (50_000, 10**10)
        call("baseline", "zb-h1", path, "-m", "4", "-o", best)
        assert call_json("check", best)["ok"]

    def test_like_another_profile(self, tmp_path):
        like = put_profile(tmp_path, small_profile(2, static_bytes=9, latency_ns=3))
        table = tmp_path / "x.csv"
        table.write_text("stage,forward_ms,backward_ms\n0,1,2\n1,1,2\n")
        told = call_json("profile", "import", table, "--like", like, "--weight-share", "0.25")
        assert told["stages"][0]["static_bytes"] == 9
        assert told["stages"][0]["backward_weight_ns"] == 500_000
        assert told["link"]["latency_ns"] == 3
        other = put_profile(tmp_path, small_profile(3), "other.json")
        assert "has 3" in error_of(call("profile", "import", table, "--like", other, code=2))

    def test_refusals(self, tmp_path):
        table = tmp_path / "x.csv"
        table.write_text("stage,forward_ms,backward_ms\n0,1,2\n")
        line = ("profile", "import", table)
        assert "cannot read 'x'" in error_of(call(*line, "--activation-bytes", "x", code=2))
        assert "gives 2 values for 1 stage" in error_of(call(*line, "--static-bytes", "1,2", code=2))
        assert "cannot read" in error_of(call(*line, "--latency", "1 hour", code=2))
        assert "positive" in error_of(call(*line, "--bandwidth", "0", code=2))
        assert "overwrite" in error_of(call(*line, "-o", table, code=2))
        assert "Missing argument" in error_of(call("profile", "import", code=2))
        assert "only one file can be standard input" in error_of(call("profile", "import", "-", "-", code=2, given="x"))
        assert call_json("profile", "import", "-", given=table.read_bytes())["stages"]


class TestWhatDoesNotGoTogether:
    def refused(self, files: list[tuple[str, str]], **options: Any) -> str:
        with pytest.raises((FileFormatError, InvalidInput)) as caught:
            import_profile([(text.encode(), name) for name, text in files], Given(), **options)
        return str(caught.value)

    def one(self, *names: str, **about: Any) -> str:
        events = [event(name, 10 * at, 5) for at, name in enumerate(names)]
        return json.dumps({"traceEvents": events} | ({"distributedInfo": about} if about else {}))

    def test_a_file_is_given_once(self):
        text = self.one("F0 of stage 0", "BW0 of stage 0")
        assert self.refused([("a", text), ("b", text)]) == "b: holds the same as a; give each file once"

    def test_one_trace_of_each_process(self):
        first = self.one("F0 of stage 0", "BW0 of stage 0", rank=0, world_size=2)
        again = self.one("BW0 of stage 0", "F0 of stage 0", rank=0, world_size=2)
        assert "b: is of process 0, as is a; give one trace of each process of one run" in self.refused(
            [("a", first), ("b", again)]
        )

    def test_traces_of_one_run(self):
        first = self.one("F0 of stage 0", "BW0 of stage 0", rank=0, world_size=2)
        other = self.one("F0 of stage 1", "BW0 of stage 1", rank=1, world_size=4)
        assert "tells of 4 processes, a of 2: they are of different runs" in self.refused([("a", first), ("b", other)])
        longer = self.one("F1 of stage 1", "BW1 of stage 1")
        text = self.refused([("a", self.one("F0 of stage 0", "BW0 of stage 0")), ("b", longer)])
        assert "b: tells of 2 microbatches, a of 1: they are of different runs" in text

    def test_steps_that_are_left(self):
        steps = self.one("F0 of stage 0", "BW0 of stage 0", "F0 of stage 0", "BW0 of stage 0")
        text = self.refused([("a", steps)], reading=Reading(skip_steps=2))
        assert text == "a: --skip-steps 2 leaves nothing of the 2 steps that were traced"
        import_profile([(self.one("F0 of stage 0", "BW0 of stage 0").encode(), "a")], Given())  # the only step counts

    def test_options_of_another_tool(self):
        steps = self.one("F0 of stage 0", "BW0 of stage 0")
        text = self.refused([("a", steps)], reading=Reading(ranks=4))
        assert text == "--ranks is for files of zero-bubble, but a is of torch-profiler; leave it out"
        assert "--placement is for" in self.refused([("a", steps)], reading=Reading(placement="v"))
        table = "stage,forward_ms,backward_ms\n0,1,2\n"
        assert "--skip-steps is for" in self.refused([("a", table)], reading=Reading(skip_steps=1))
