"""The comparison: engines as processes, one after the other, under the same load through HTTP.

Cells say what is asked for, engines how each is started, clients ask, measures read the replies, and what was found
is kept as JSON lines, from which table and figures are made. Nothing here knows an engine's inside.
"""
