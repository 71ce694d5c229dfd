"""The figures of the compression study, from made-up attempts whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up
import numpy as np
import pytest

from ponder.core import UserError
from ponder.figures.cache import Cache
from ponder.figures.heatmap import Heatmap
from ponder.results.charts import draw_figure
from ponder.stats.grid import grid
from ponder.stats.paired import matched, paired_difference

WINDOWS, RATIOS = (8, 16, 32), (0.1, 0.3, 0.5)


def attempts(
    policy="dynts", better=lambda window, ratio: 0.0, problems=40, size=16, task="tents", budget=64
):
    """One model under a policy at every window and ratio, and with its full cache."""
    rng = np.random.default_rng(13)
    hard = rng.normal(0.5, 1.5, problems)
    places = [(w, r) for w in WINDOWS for r in RATIOS]
    found = []
    for window, ratio in [*places, (None, None)]:
        settings = (
            {"policy": policy, "window": window, "ratio": ratio, "budget": budget} if window else {}
        )
        methods = [("compress", settings)] if window else []
        label = (
            f"pocket + {policy} window={window} ratio={ratio} budget={budget}"
            if window
            else "pocket"
        )
        gain = better(window, ratio) if window else 0.0
        held = 1000 * (window + ratio * (budget - window)) if window else 200_000
        for i in range(problems):
            right = bool(rng.random() < 1 / (1 + math.exp(-hard[i] - gain)))
            details = {"cache_bytes": held * rng.uniform(0.9, 1.1)}
            named = {"label": {"model": label, "variant": label}, "methods": methods}
            ended = "right" if right else "wrong"
            found.append(
                made_up.outcome(task, "pocket", size, f"p{i}", ended, details=details, **named)
            )
    return found


def compressed(outcome):
    """The settings of an outcome's compression; {} for the full cache."""
    return made_up.settings_of(outcome, "compress")


def peak(window, ratio):
    return 5.0 if (window, ratio) == (16, 0.3) else -1.0


def test_a_planted_peak_is_found_and_said() -> None:
    drawn = draw_figure("heatmap", Heatmap(), attempts(better=peak))
    [panel] = drawn.tables["panels"]
    assert panel["panel"] == "pocket | tents | dynts"
    assert (panel["best_window"], panel["best_ratio"], panel["may_be_best"], panel["cells"]) == (
        16,
        0.3,
        1,
        9,
    )
    assert panel["p_value"] < 0.001
    assert [(c["window"], c["ratio"]) for c in drawn.tables["cells"] if c["may_be_best"]] == [
        (16, 0.3)
    ]
    assert "no other cell could be the best" in drawn.findings[0]
    assert "cells differ by more than sampling noise (p < 0.001)" in drawn.findings[0]
    assert drawn.picture.png.startswith(b"\x89PNG")


def test_noise_is_called_noise() -> None:
    outcomes = attempts()
    tables = Heatmap().estimate(outcomes)
    found = Heatmap().findings(tables)
    assert "9 of 9 cells could be the best" in found[0]
    assert "no structure beyond sampling noise" in found[0]
    assert "attempts per cell would tell it from the runner-up" in found[0]
    on_map = [o for o in outcomes if compressed(o)]
    again = grid(
        np.array([WINDOWS.index(compressed(o)["window"]) for o in on_map]),
        np.array([RATIOS.index(compressed(o)["ratio"]) for o in on_map]),
        np.unique([f"{o.size} {o.problem}" for o in on_map], return_inverse=True)[1],
        np.array([o.correct for o in on_map]),
    )
    assert tables["panels"][0]["p_value"] == again.p_value
    assert Heatmap().estimate(outcomes[::-1]) == tables


def test_the_full_cache_stands_beside_the_map() -> None:
    outcomes = attempts(better=peak)
    tables = Heatmap().estimate(outcomes)
    [row] = tables["without"]
    whole = [o.correct for o in outcomes if not compressed(o)]
    assert (row["without"], row["accuracy"]) == ("full", np.mean(whole))
    best = [
        o.correct
        for o in outcomes
        if (compressed(o).get("window"), compressed(o).get("ratio")) == (16, 0.3)
    ]
    assert row["gain"] == pytest.approx(np.mean(best) - np.mean(whole))
    assert row["gain_low"] < row["gain"] < row["gain_high"]
    assert "the best cell minus the full cache" in Heatmap().findings(tables)[1]
    # A policy that evicts nothing is a full cache too, whatever its other settings.
    full = made_up.outcome(
        "tents", "pocket", methods=[("compress", {"policy": "full", "window": 8, "ratio": 0.1})]
    )
    named = [
        o._replace(cell=replace(o.cell, methods=full.cell.methods))
        for o in outcomes
        if not compressed(o)
    ]
    again = Heatmap().estimate([*(o for o in outcomes if compressed(o)), *named])
    assert [{**r, "basis": ""} for r in again["without"]] == [
        {**r, "basis": ""} for r in tables["without"]
    ]


def test_the_gain_of_the_best_cell_is_corrected_for_picking_it_from_many() -> None:
    outcomes = attempts(better=peak)
    [row] = Heatmap().estimate(outcomes)["without"]
    best = [
        o
        for o in outcomes
        if (compressed(o).get("window"), compressed(o).get("ratio")) == (16, 0.3)
    ]
    whole = [o for o in outcomes if not compressed(o)]
    corrected = paired_difference(*matched(best, whole), level=1 - 0.05 / 9)
    assert (row["gain_low"], row["gain_high"]) == (corrected.low, corrected.high)
    single = paired_difference(*matched(best, whole))
    assert corrected.low < single.low
    assert (
        "corrected for picking it from 9 cells"
        in Heatmap().findings(Heatmap().estimate(outcomes))[1]
    )
    # A map of one cell has nothing to correct for.
    [row] = Heatmap().estimate(best + whole)["without"]
    assert (row["gain_low"], row["gain_high"]) == (single.low, single.high)


def test_axes_are_named_as_in_the_paper() -> None:
    spec = Heatmap().draw(Heatmap().estimate(attempts())).to_dict()
    cells = spec["vconcat"][0]["hconcat"][0]["layer"][0]["encoding"]
    titles = [cells["y"]["title"], cells["x"]["title"], cells["color"]["legend"]["title"]]
    assert titles == ["local window size", "ratio", "Pass@1"]
    other = Heatmap(x="token_budget", y="budget")
    outcomes = [
        o._replace(details={"token_budget": i % 2})
        for i, o in enumerate(attempts())
        if compressed(o)
    ]
    drawn = other.draw(other.estimate(outcomes)).to_dict()
    encoding = drawn["vconcat"][0]["hconcat"][0]["layer"][0]["encoding"]
    assert (encoding["y"]["title"], encoding["x"]["title"]) == ("budget", "token budget")


def test_panels_by_policy_size_and_what_else_varies() -> None:
    outcomes = (
        attempts() + attempts("random", size=25) + attempts(size=25, budget=128) + attempts(size=25)
    )
    apart, together = (
        Heatmap(sizes=sizes).estimate(outcomes)["panels"] for sizes in ("apart", "together")
    )
    assert [p["panel"] for p in apart] == [
        "pocket | tents 16 | dynts",
        "pocket | tents 25 | dynts | budget 128",
        "pocket | tents 25 | dynts | budget 64",
        "pocket | tents 25 | random",
    ]
    assert [p["compared"] for p in together] == [40, 80, 40]


def test_panels_of_one_task_share_a_colour_scale() -> None:
    outcomes = (
        attempts()
        + attempts("random", better=lambda window, ratio: -9.0)
        + attempts(size=25, better=lambda window, ratio: 1.0)
    )

    def colours(scale) -> list:
        figure = Heatmap(scale=scale)
        panels = figure.draw(figure.estimate(outcomes)).to_dict()["vconcat"][0]["hconcat"]
        return [panel["layer"][0]["encoding"]["color"] for panel in panels]

    cells = Heatmap().estimate(outcomes)["cells"]
    ends = {
        size: (min(c["accuracy"] for c in own), max(c["accuracy"] for c in own))
        for size in (16, 25)
        if (own := [c for c in cells if f"tents {size}" in c["panel"]])
    }
    dynts, random, larger = colours("task")  # tents 16, then 25
    assert [tuple(c["scale"]["domain"]) for c in (dynts, random, larger)] == [
        ends[16],
        ends[16],
        ends[25],
    ]
    # one for both
    assert [c["legend"] is None for c in (dynts, random, larger)] == [True, False, False]
    assert len({tuple(c["scale"]["domain"]) for c in colours("panel")}) == 3
    assert all(c["legend"] for c in colours("panel"))


def test_published_maps_stand_below() -> None:
    figure = Heatmap(overlay="dynts_window_ratio")
    drawn = draw_figure("heatmap", figure, attempts())
    assert [p["source"] for p in drawn.tables["panels"]] == ["measured"] + 4 * ["published"]
    assert len(drawn.tables["cells"]) == 9 + 4 * 20
    assert len(drawn.spec["vconcat"]) == 2
    said = next(s for s in drawn.findings if "AIME24" in s)
    assert (
        "(window 2000, ratio 0.4) has 52% [44%, 60%] accuracy, but 20 of 20 cells could be the best"
        in said
    )
    assert "no structure beyond binomial noise (p = 0.97)" in said
    assert "About 3,500 attempts per cell" in said
    assert any("4 cells tie for the best" in s for s in drawn.findings)


def test_failed_attempts_are_left_out_and_counted() -> None:
    outcomes = attempts(problems=10)
    outcomes[0] = outcomes[0]._replace(ended="failed")
    [panel] = Heatmap().estimate(outcomes)["panels"]
    assert panel["compared"] == 9
    assert "1 failed and left out" in panel["rests_on"]


def test_without_the_settings_or_the_bytes_there_is_no_figure() -> None:
    bare = [o._replace(cell=replace(o.cell, methods=()), details={}) for o in attempts()]
    with pytest.raises(UserError, match="both `ratio` and `window`"):
        Heatmap().estimate(bare)
    with pytest.raises(UserError, match="cache_bytes"):
        Cache().estimate(bare)


def test_time_per_token_stands_beside_the_bytes() -> None:
    timed = [
        o._replace(
            details={
                **o.details,
                "seconds_per_token": 0.004,
                "cpu_seconds_per_token": (0.003 if compressed(o) else 0.002),
            }
        )
        for o in attempts()
    ]
    drawn = draw_figure("cache", Cache(), timed)
    assert {
        (p["policy"], round(p["cpu_ms"], 6), round(p["wall_ms"], 6)) for p in drawn.tables["points"]
    } == {
        ("dynts", 3.0, 4.0),
        ("full", 2.0, 4.0),
    }
    assert (
        "A token takes 3 [3, 3] ms of CPU with it, 2 [2, 2] ms with the full cache."
        in drawn.findings[0]
    )
    assert "ms of CPU" not in draw_figure("cache", Cache(), attempts()).findings[0]


def test_accuracy_by_bytes() -> None:
    outcomes = attempts(better=lambda window, ratio: 8 * (ratio - 0.3))
    drawn = draw_figure("cache", Cache(), outcomes)
    points = drawn.tables["points"]
    assert [p["policy"] for p in points] == 9 * ["dynts"] + ["full"]
    assert [p["bytes"] for p in points[:9]] == sorted(p["bytes"] for p in points[:9])
    assert all(p["bytes_low"] < p["bytes"] < p["bytes_high"] for p in points)
    point = next(p for p in points if p["settings"] == "ratio 0.5, window 8, budget 64")
    part = [
        o for o in outcomes if (compressed(o).get("window"), compressed(o).get("ratio")) == (8, 0.5)
    ]
    assert point["accuracy"] == np.mean([o.correct for o in part])
    assert point["bytes"] == pytest.approx(np.mean([o.details["cache_bytes"] for o in part]))
    assert "kl" not in point
    assert "the smallest cache that isn't shown to be less accurate is dynts" in drawn.findings[0]
    # The smallest cache whose loss against the full one may be none.
    near = [p for p in points if p["policy"] != "full" and p["gain_high"] >= 0]
    assert 1 < len(near) < 9
    assert (
        f"less accurate is dynts, {min(near, key=lambda p: p['bytes'])['settings']}, with "
        in drawn.findings[0]
    )
    assert drawn.picture.png.startswith(b"\x89PNG")


def test_fidelity_stands_beside_accuracy() -> None:
    outcomes = [
        o._replace(details={**o.details, "kl": 0.2}) if compressed(o) else o for o in attempts()
    ]
    points = Cache().estimate(outcomes)["points"]
    assert points[0]["kl"] == pytest.approx(0.2)
    assert "kl" not in points[-1]


def test_kvcache_that_all_lose() -> None:
    tables = Cache().estimate(attempts(better=lambda window, ratio: -9.0))
    assert Cache().findings(tables)[0].endswith("every pruned cache is less accurate.")
