"""Fits token sequences to a model: long traces into windows, many rows into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate


def spans(lengths: Sequence[int], room: int, context: float) -> Iterator[tuple[int, int, int]]:
    """Divide steps of these lengths into as few windows as possible: first step shown, first step
    scored, end.

    A window shows the last steps before it that fit into `context` tokens, then as many new ones as
    there is room for, at least one. Each step is scored in exactly one window.
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
    """Group indices of rows of similar length, each group padded to at most `max_tokens`, or a
    single longer row.

    The longest rows come first, so that a shortage of memory shows at once.
    """
    groups: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups
