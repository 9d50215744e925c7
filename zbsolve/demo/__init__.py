"""The whole way on this machine: measure a small transformer, solve, check, draw, run, compare."""

from __future__ import annotations

from zbsolve.demo.run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
