"""The operation graph: costs, placement and rules as arrays, the only flattening of a problem.

Nodes are operations, lanes run one at a time, arcs are precedences with lags. There is no order
and there are no times here; whoever reads the graph needs no stage, link or profile.
"""

from zbsolve.opgraph.graph import OpGraph
from zbsolve.opgraph.kinds import KINDS, Int8, Int32, Int64
from zbsolve.opgraph.lanes import Lane

__all__ = ["KINDS", "Int8", "Int32", "Int64", "Lane", "OpGraph"]
