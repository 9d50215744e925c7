"""Split backward: the input gradient now, the weight gradients whenever the timetable says.

stage.py          SplitStage: F, B, W of many microbatches
  install.py      split forwards go in and come out
    modules.py    which modules, and their split forwards
      linear.py embedding.py convolution.py norms.py
  flight.py       one microbatch between F and W
  waiting.py      what W still needs
    accumulate.py into .grad as autograd does
    shared.py     parameters of several stages of a rank
  aside.py        what B computes of weights waits for W, too
again.py            a forward that is computed again
away.py moving.py   what it saved, in host memory for a while
engine.py           into autograd with little around it
learned.py report.py flops.py     what is deferred
held.py inflight.py               what lives
"""

from __future__ import annotations

from zbsolve.executor.split.again import DRAWING
from zbsolve.executor.split.held import HeldBytes
from zbsolve.executor.split.report import Fallback, SplitReport
from zbsolve.executor.split.shared import SharedByStages
from zbsolve.executor.split.stage import SplitStage

__all__ = ["DRAWING", "Fallback", "HeldBytes", "SharedByStages", "SplitReport", "SplitStage"]
