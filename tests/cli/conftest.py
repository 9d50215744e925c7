"""What most tests of the command line begin with."""

from __future__ import annotations

import pytest

from tests.cli.helpers import put_profile, put_timetable


@pytest.fixture
def profile(tmp_path):
    return put_profile(tmp_path)


@pytest.fixture
def timetable(tmp_path):
    return put_timetable(tmp_path)
