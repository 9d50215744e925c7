"""Why a timetable takes as long as it does: questions that re-time or re-solve, and change nothing.

One module a question, each a pure function of a `Network`, which is a timetable with its operation
graph: `critical` (what sets the value), `slack` (how much longer each operation may take), `idle`
(the cause of every idle moment), `holds` (what an operation waits for, told as a chain), `phases`
(warm-up, steady state, cool-down), `whatif` (what more memory, a faster link, a lighter stage would
gain). `explain` puts the answers together. `jitter` times an order whose durations vary, `robust`
chooses among what a search met by that, `compare` puts published schedules beside the solved one,
`sweep` solves over memory, microbatches and placements (in the processes of `processes`).
"""
