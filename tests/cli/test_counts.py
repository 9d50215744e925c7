"""Numbers of stages, ranks and layers that do not fit are told with what would."""

from __future__ import annotations

from tests.cli.helpers import call, error_of, put_profile, put_timetable, small_profile


def test_too_many_layers(tmp_path):
    given = put_timetable(tmp_path)
    for layers in ("99999999", "1,10000000"):
        told = error_of(call("emit", given, "--to", "megatron-layout", "--layers", layers, code=2))
        assert f"{layers}: a stage has fewer than 1000000 layers" in told


def test_a_bidirectional_placement_has_as_many_stages_as_ranks(tmp_path):
    profile = put_profile(tmp_path, small_profile(4))
    told = error_of(call("solve", profile, "-m", "2", "--placement", "bidirectional", "--ranks", "2", code=2))
    assert "has as many stages as ranks" in told
    assert "the profile has 4 stages, --ranks says 2; leave --ranks out" in told
