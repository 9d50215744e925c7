"""Pictures of timetables: text for the terminal, SVG and PNG files.

`zbsolve.draw.terminal` needs nothing beyond the core; `zbsolve.draw.figure` imports matplotlib
(the extra ``plot``) only when a picture is asked for.
"""
