"""A user's model, named as ``MODULE:FUNCTION`` and checked before anything runs on it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from zbsolve.errors import InvalidInput, ZbsolveError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LossFn",
    "Sample",
    "Target",
    "call_target",
    "check_target",
    "load_target",
    "refuse_coroutine",
    "root_cause",
    "users_code",
]

Inputs: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
Sample: TypeAlias = "tuple[Inputs, torch.Tensor]"
LossFn: TypeAlias = "Callable[..., torch.Tensor]"
Target: TypeAlias = "tuple[tuple[torch.nn.Module, ...], Sample, LossFn]"

_KNOWN = {
    "detach views in-place": "it returns a view, and torch cannot split the backward of such a stage; return "
    "output.clone() from it",
    "leaf Variable that requires grad is being used in an in-place": "it changes its input in place, which torch's "
    "pipelining does not allow; set inplace=False there",
}
"""What errors of torch mean here."""

_FORM = "write MODULE:FUNCTION or path/to/file.py:FUNCTION"


def load_target(spec: str) -> Target:
    """Import a function by name and call it for the model to work on.

    Parameters
    ----------
    spec
        ``"package.module:function"`` (the working directory is searched too) or
        ``"path/to/file.py:function"``. The function takes no arguments and returns
        ``(stages, sample, loss_fn)``: the modules of the stages from input to loss, the
        ``(inputs, target)`` of one microbatch, and ``loss_fn(output, target)`` giving a scalar.

    Returns
    -------
    The function's three values, stages as a tuple.

    Raises
    ------
    InvalidInput
        If the function cannot be found, raises, or returns something else.
    """
    return call_target(spec, {})


def call_target(spec: str, arguments: Mapping[str, Any]) -> Target:
    """`load_target` for a function that takes keyword arguments."""
    with _on_path(Path.cwd()):
        function = _find(spec)
        if inspect.iscoroutinefunction(function):
            raise InvalidInput(f"{spec} is an async function; expected one that returns (stages, sample, loss_fn)")
        with users_code(f"{spec} failed"):
            value = function(**arguments)
    return check_target(value, f"{spec} returned")


def refuse_coroutine(value: object, what: str) -> None:
    """Refuse what an async function returns, and end it before Python complains that nobody awaited it."""
    if isinstance(value, CoroutineType):
        value.close()
        raise InvalidInput(f"{what} a coroutine; async functions are not awaited here, use a plain one")


def check_target(value: object, what: str) -> Target:
    """Refuse anything but ``(stages, (inputs, target), loss_fn)``; `what` begins the message."""
    refuse_coroutine(value, what)
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise InvalidInput(f"{what} {_shown(value)}; expected (stages, sample, loss_fn)")
    stages, sample, loss_fn = value
    if not isinstance(stages, Sequence | torch.nn.ModuleList | torch.nn.Sequential) or isinstance(stages, str):
        raise InvalidInput(f"{what} {_shown(stages)} as its stages; expected a list of torch.nn.Module")
    modules = tuple(stages)
    if not modules:
        raise InvalidInput(f"{what} no stages; a pipeline needs at least one")
    for number, module in enumerate(modules):
        if not isinstance(module, torch.nn.Module):
            raise InvalidInput(f"{what} {_shown(module)} as stage {number}; expected a torch.nn.Module")
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise InvalidInput(f"{what} {_shown(sample)} as its sample; expected (inputs, target) of one microbatch")
    inputs, target = sample
    if isinstance(inputs, list):
        inputs = tuple(inputs)
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        raise InvalidInput(f"{what} {_shown(inputs)} as its inputs; expected a tensor or a tuple of tensors")
    if not isinstance(target, torch.Tensor):
        raise InvalidInput(f"{what} {_shown(target)} as its target; expected a tensor")
    if not callable(loss_fn):
        raise InvalidInput(f"{what} {_shown(loss_fn)} as its loss; expected a function of (output, target)")
    return modules, (inputs, target), loss_fn


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one clear error that says what and where."""
    try:
        yield
    except (ZbsolveError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        root = root_cause(error)
        known = [meaning for words, meaning in _KNOWN.items() if words in str(root)]
        said = root.msg if isinstance(root, SyntaxError) else str(root).strip()
        text = known[0] if known else f"{type(root).__name__}: {said}"
        raise InvalidInput(f"{what}: {text}{_place(root)}") from error


def root_cause(error: BaseException) -> BaseException:
    """The first error of a chain: torch wraps a model's own errors in pages of context."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:  # it stands where it could not be read, in no frame
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [
        f for f in frames if not f.filename.startswith((ours, "<")) and f"{os.sep}torch{os.sep}" not in f.filename
    ]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""


def _find(spec: str) -> Callable[..., Any]:
    module_name, colon, function_name = spec.rpartition(":")
    if not colon or not module_name or not function_name.isidentifier():
        raise InvalidInput(f"cannot read {spec!r}: {_FORM}")
    is_file = module_name.endswith(".py")
    module = _load_file(Path(module_name)) if is_file else _import(module_name, spec)
    function = getattr(module, function_name, None)
    if function is None:
        raise InvalidInput(f"{module_name} has no {function_name!r}; {_FORM}")
    if not callable(function):
        raise InvalidInput(f"{spec} is {_shown(function)}; expected a function that returns (stages, sample, loss_fn)")
    found: Callable[..., Any] = function
    return found


def _import(name: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"cannot read {spec!r}: {name!r} is no module name; {_FORM}")
    with users_code(f"importing {name} failed"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                raise InvalidInput(
                    f"there is no module {error.name!r} here or among the installed packages; {_FORM}"
                ) from None
            raise


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput(f"there is no file {str(path)!r}; {_FORM}")
    name = f"_zbsolve_target_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path.resolve())
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # dataclasses and pickle look modules up by name
    sys.modules[name] = module
    with _on_path(path.resolve().parent), users_code(f"importing {path} failed"):
        specification.loader.exec_module(module)
    return module


@contextmanager
def _on_path(directory: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path[:] = before


def _shown(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
