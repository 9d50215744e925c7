"""A user's model by name: found, or refused with words that help."""

from __future__ import annotations

import gc
import textwrap
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from zbsolve.errors import InvalidInput  # noqa: E402
from zbsolve.executor.measure import load_target  # noqa: E402

GOOD = """
import torch
from torch import nn
def model():
    return [nn.Linear(2, 2)], (torch.ones(1, 2), torch.ones(1, 2)), nn.functional.mse_loss
def layered():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [[torch.ones(1, 2)], torch.ones(1)], nn.MSELoss()
def needs(more):
    pass
def fails():
    raise ValueError("the disk is full")
def leaves():
    raise SystemExit(3)
def none():
    pass
def half():
    return [nn.Linear(2, 2)], (torch.ones(1, 2), torch.ones(1, 2))
def no_target():
    return [nn.Linear(2, 2)], (torch.ones(1, 2), 3), nn.MSELoss()
def no_loss():
    return [nn.Linear(2, 2)], (torch.ones(1, 2), torch.ones(1)), "mse"
async def later():
    pass
def promise():
    return later()
number = 4
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a_model_of_mine.py"
    path.write_text(textwrap.dedent(GOOD), encoding="utf-8")
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n", encoding="utf-8")
    (tmp_path / "unreadable.py").write_text("# one\n# two\ndef (:\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["a_model_of_mine:model", "a_model_of_mine.py:model", "./a_model_of_mine.py:model"])
def test_by_module_in_the_working_directory_and_by_file(file, form):
    stages, (inputs, target), loss_fn = load_target(form)
    assert len(stages) == 1
    assert loss_fn(stages[0](inputs), target).dim() == 0


def test_a_sequential_is_a_list_of_stages_and_lists_become_tuples(file):
    stages, (inputs, _), _ = load_target("a_model_of_mine:layered")
    assert isinstance(stages, tuple)
    assert len(stages) == 2
    assert isinstance(inputs, tuple)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "MODULE:FUNCTION"),
        ("a_model_of_mine", "MODULE:FUNCTION"),
        ("a_model_of_mine:", "MODULE:FUNCTION"),
        (":model", "MODULE:FUNCTION"),
        ("a b:model", "no module name"),
        ("..:model", "no module name"),
        ("no_such_module_here:model", "no module 'no_such_module_here'"),
        ("a_model_of_mine.sub:model", "a_model_of_mine"),
        ("nowhere.py:model", "no file 'nowhere.py'"),
        ("a_model_of_mine:nothing", "has no 'nothing'"),
        ("a_model_of_mine:number", "expected a function"),
        ("a_model_of_mine:needs", "missing 1 required positional argument"),
        ("a_model_of_mine:fails", r"ValueError: the disk is full \(.*a_model_of_mine\.py, line"),
        ("a_model_of_mine:leaves", "SystemExit"),
        ("a_model_of_mine:none", "returned nothing"),
        ("a_model_of_mine:half", r"expected \(stages, sample, loss_fn\)"),
        ("a_model_of_mine:no_target", "as its target"),
        ("a_model_of_mine:no_loss", "as its loss"),
        ("broken.py:model", "a_module_that_is_not_there"),
        ("broken:model", "a_module_that_is_not_there"),
        ("unreadable.py:model", r"SyntaxError: .*\(.*/unreadable\.py, line 3\)$"),
        ("unreadable:model", r"SyntaxError: .*\(.*/unreadable\.py, line 3\)$"),
        ("a_model_of_mine:later", "is an async function"),
        ("a_model_of_mine:promise", "returned a coroutine"),
    ],
)
def test_refusals_name_what_is_wrong(file, spec, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that nobody awaited
        with pytest.raises(InvalidInput, match=message):
            load_target(spec)
        gc.collect()
