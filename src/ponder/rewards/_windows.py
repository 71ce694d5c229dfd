"""Long traces in a model's window, and rows of tokens in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate


def spans(lengths: Sequence[int], room: int, context: float) -> Iterator[tuple[int, int, int]]:
    """Steps of these lengths in as few windows as they need: the first step shown, the first one scored, the end.

    A window shows the last steps before it that fit into `context` tokens, and then as many new ones as there is room
    for, at least one. Each step is scored in one window.
    """
    ends = list(accumulate(lengths, initial=0))
    done = 0
    while done < len(lengths):
        first = done
        while first and ends[done] - ends[first - 1] <= context and ends[done + 1] - ends[first - 1] <= room:
            first -= 1
        last = done + 1
        while last < len(lengths) and ends[last + 1] - ends[first] <= room:
            last += 1
        yield first, done, last
        done = last


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Indices in batches of at most so many tokens with padding. The longest go first: if memory is short, it shows."""
    some: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        if some and (len(some) + 1) * lengths[some[0]] > most:
            yield some
            some = []
        some.append(n)
    if some:
        yield some
