"""The documentation builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.documents import ROOT

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_builds_strictly_and_has_its_pages(site):
    assert "The best timetable" in (site / "index.html").read_text(encoding="utf-8")
    verbs = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "zbsolve sweep" in verbs
    assert "--robust" in verbs
    solving = (site / "reference" / "solving.html").read_text(encoding="utf-8")
    assert "Find the best timetable and prove how good it is." in solving
    assert "Wall time in seconds." in solving  # parameters are read from the docstrings


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//[^"]*"', text) == [], page
        assert re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//[^"]*"', text) == [], page
