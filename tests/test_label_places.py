"""Labels of points and lines stay inside their panel and apart from each other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ponder.figures._label_placement import LETTER, LINE, Frame, label_lines, place_labels


def box(row: dict[str, Any], frame: Frame) -> tuple[float, float, float, float]:
    """The pixels of a placed label."""
    x, y = frame.pixel(row["text_x"], row["text_y"])
    width = LETTER * len(row["label"])
    left = x - {"left": 0.0, "center": width / 2, "right": width}[row["align"]]
    return left, y - LINE / 2, left + width, y + LINE / 2


def inside(row: dict[str, Any], frame: Frame) -> bool:
    left, top, right, bottom = box(row, frame)
    return (
        left >= -1e-6
        and top >= -1e-6
        and right <= frame.width + 1e-6
        and bottom <= frame.height + 1e-6
    )


def overlapping(boxes: list[tuple[float, float, float, float]]) -> bool:
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
    return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in pairs)


@pytest.mark.parametrize("log", [False, True])
def test_labels_stay_inside_the_panel_and_apart(log: bool) -> None:
    frame = Frame((2.0, 3.0) if log else (100.0, 1000.0), (0.0, 1.0), 400, 300, log=log)
    rng = random.Random(1)
    edges = [(100.0, 0.0), (100.0, 1.0), (1000.0, 0.0), (1000.0, 1.0), (550.0, 1.0), (1000.0, 0.5)]
    for _ in range(20):
        places = edges + [(rng.uniform(100, 1000), rng.random()) for _ in range(6)]
        rows = [
            {"tokens": x, "accuracy": y, "label": f"variant {i:02}"}
            for i, (x, y) in enumerate(places)
        ]
        placed = place_labels(rows, frame)
        assert all(inside(row, frame) for row in placed)
        assert not overlapping([box(row, frame) for row in placed])


def test_long_labels_of_many_points_with_one_accuracy_stay_apart() -> None:
    """As those of several models and budgets that solve all problems."""
    frame = Frame((0.0, 9000.0), (0.83, 1.006), 430, 300)
    rows = []
    for tokens in (10, 522, 1034, 1979, 2058, 3719, 3958, 3958, 3968, 7916):
        rows.append(
            {
                "tokens": tokens,
                "accuracy": 1.0,
                "accuracy_low": 0.84,
                "accuracy_high": 1.0,
                "label": "claude-haiku-4-5 think=4096",
            }
        )
    placed = place_labels(rows, frame)
    assert all(inside(row, frame) for row in placed)
    labels = [box(row, frame) for row in placed]
    assert not overlapping(labels)
    for row in rows:  # no label hides a point
        x, y = frame.pixel(row["tokens"], row["accuracy"])
        assert not any(left < x < right and top < y < bottom for left, top, right, bottom in labels)


def test_a_label_avoids_bars_and_lines() -> None:
    frame = Frame((0.0, 100.0), (0.0, 1.0), 400, 300)
    point = {
        "tokens": 50.0,
        "accuracy": 0.5,
        "accuracy_low": 0.1,
        "accuracy_high": 0.9,
        "label": "label",
    }
    line = [{"tokens": t, "accuracy": 0.5} for t in (0.0, 100.0)]
    [placed] = place_labels([point], frame, lines=[line])
    left, top, right, bottom = box(placed, frame)
    assert right < 200 or left > 200  # the bar at the middle
    assert bottom < 150 or top > 150  # the line at half height


def test_a_line_is_named_where_no_line_crosses_the_name() -> None:
    frame = Frame((0.0, 10.0), (0.0, 10.0), 400, 400)
    steep = [{"x": 2.0, "y": 0.0}, {"x": 2.5, "y": 10.0}]
    flat = [{"x": 0.0, "y": 5.0}, {"x": 10.0, "y": 5.5}]
    other = [(0.0, 8.0), (10.0, 8.0)]
    for row in label_lines({"a steep line": steep, "a flat line": flat}, frame, "x", "y", [other]):
        assert inside(row, frame)
        left, top, right, bottom = box(row, frame)
        for (x0, y0), (x1, y1) in (
            [(p["x"], p["y"]) for p in steep],
            [(p["x"], p["y"]) for p in flat],
            other,
        ):
            trail = [
                frame.pixel(x0 + i / 200 * (x1 - x0), y0 + i / 200 * (y1 - y0)) for i in range(201)
            ]
            assert not any(left < x < right and top < y < bottom for x, y in trail)
