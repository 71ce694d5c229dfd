"""Reasoning traces: read from files in any of the common formats, and split into steps.

    from ponder.traces import read, steps

    traces = read(Path("traces.jsonl"), bad="skip")
    split = [steps(trace) for trace in traces]
    traces.skipped  # ["traces.jsonl:7: it has no question; its columns are …", …]
    traces.formats  # {"named columns": 811}

`formats` lists the formats that are understood, and says of each trace how it was read.
"""

from __future__ import annotations

from ponder.traces.alignment import align, hashed, similarity
from ponder.traces.formats import NAMES, Understood, understand
from ponder.traces.split import steps
from ponder.traces.trace import Trace, request_messages, trace_of
from ponder.traces.trace_file import TraceFile, read

__all__ = [
    "NAMES",
    "Trace",
    "TraceFile",
    "Understood",
    "align",
    "hashed",
    "read",
    "request_messages",
    "similarity",
    "steps",
    "trace_of",
    "understand",
]
