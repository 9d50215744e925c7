"""What running a timetable costs, on our runtime and on torch's, side by side.

::

    python -m benchmarks.executor [--quick] [--json]
      plans       the five schedules
      sleeping    stages whose operations sleep, so that ranks overlap on few cores
      rank        one of four processes that run both runtimes in turn
      forked      starts them
      steps       measured over predicted, and with and without a barrier
      overhead    the cost of an action on stages that do nothing
      peak        the most that is held on each rank, over what the timetable foretells
      figures     medians and spread
"""
