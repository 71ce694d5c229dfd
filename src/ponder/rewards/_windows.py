"""Fits token sequences to a model: long traces into windows, many rows into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate


def spans(lengths: Sequence[int], room: int, context: float) -> Iterator[tuple[int, int, int]]:
    """Divide steps into windows; yield each one's first step, first scored step, and end.

    `lengths` are the steps' tokens. A window shows the last steps before it that fit into `context`
    tokens, then as many new ones as there is room for, at least one. Each step is scored in exactly
    one window.
    """
    ends = list(accumulate(lengths, initial=0))
    done = 0
    while done < len(lengths):
        first = done
        while (
            first
            and ends[done] - ends[first - 1] <= context
            and ends[done + 1] - ends[first - 1] <= room
        ):
            first -= 1
        last = done + 1
        while last < len(lengths) and ends[last + 1] - ends[first] <= room:
            last += 1
        yield first, done, last
        done = last


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group the indices of rows by length, each group padded to at most `max_tokens`.

    A longer row is a group of its own. The longest rows come first, so that a shortage of memory
    shows at once.
    """
    groups: list[list[int]] = []
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for index in longest_first:
        if groups:
            group = groups[-1]
            padded_tokens = (len(group) + 1) * lengths[group[0]]
            if padded_tokens <= max_tokens:
                group.append(index)
                continue
        groups.append([index])
    return groups
