"""The fidelity figure: hand-worked drifts, set against the reference text by text."""

from __future__ import annotations

import math

import made_up
import numpy as np
import pytest
from scipy import stats
from test_figures import every

from ponder.core import Outcome, UserError
from ponder.figures.fidelity import Fidelity


def outcome(problem: str, policy: str, kl: float | None, **settings) -> Outcome:
    details = {} if kl is None else {"kl": kl}
    methods = [("compress", {"policy": policy, **settings})]
    label = " ".join([f"gpt + tools + {policy}", *(f"{k}={v}" for k, v in settings.items())])
    names = {"model": label, "variant": label}
    return made_up.outcome(
        "tents", "gpt + tools", 25, problem, methods=methods, label=names, details=details
    )


# Without skewness, where Hall's interval is that of Student's t.
DRIFTS = {
    "random": [0.5, 0.3, 0.4, 0.6],
    "snapkv": [0.2, 0.1, 0.1, 0.2],
    "h2o": [0.7, 0.5, 0.6, 0.8],
}
OUTCOMES = [
    outcome(str(n), policy, kl) for policy, drifts in DRIFTS.items() for n, kl in enumerate(drifts)
]


def test_drift_is_a_mean_over_texts_with_its_interval() -> None:
    points = {p["policy"]: p for p in Fidelity().estimate(OUTCOMES)["points"]}
    low, high = stats.t.interval(0.95, 3, np.mean(DRIFTS["h2o"]), stats.sem(DRIFTS["h2o"]))
    assert points["h2o"]["drift"] == pytest.approx(0.65)
    assert (points["h2o"]["drift_low"], points["h2o"]["drift_high"]) == pytest.approx((low, high))
    assert list(points) == ["snapkv", "random", "h2o"]


def test_policies_are_set_against_the_reference_text_by_text() -> None:
    points = {p["policy"]: p for p in Fidelity().estimate(OUTCOMES)["points"]}
    pairs = np.subtract(DRIFTS["snapkv"], DRIFTS["random"])
    low, high = stats.t.interval(0.95, 3, pairs.mean(), stats.sem(pairs))
    found = [points["snapkv"][k] for k in ("less", "less_low", "less_high")]
    assert found == pytest.approx([pairs.mean(), low, high])
    assert points["random"]["less"] is None
    (said,) = Fidelity().findings(Fidelity().estimate(OUTCOMES))
    assert "snapkv drifts least" in said
    assert "less drift than random, paired by text: snapkv; more: h2o" in said
    assert said.startswith("gpt + tools | tents 25: ")


def test_only_what_is_swept_tells_points_apart() -> None:
    some = [
        outcome(str(n), "random", 0.1, window=16, ratio=r) for n in range(3) for r in (0.25, 0.5)
    ]
    tables = Fidelity().estimate(some)
    assert {p["settings"] for p in tables["points"]} == {"ratio 0.25", "ratio 0.5"}
    assert math.isfinite(tables["points"][0]["drift"])
    assert Fidelity().draw(tables).to_dict()["title"]["text"].endswith("less is better")


def test_a_legend_only_where_settings_differ() -> None:
    alone = Fidelity().draw(Fidelity().estimate(OUTCOMES))
    some = [outcome(str(n), "random", 0.1, ratio=r) for n in range(3) for r in (0.25, 0.5)]
    swept = Fidelity().draw(Fidelity().estimate(some))
    assert "bottom" not in every(alone.to_dict(), "orient")
    assert "bottom" in every(swept.to_dict(), "orient")


def test_attempts_without_drift_are_refused() -> None:
    with pytest.raises(UserError, match="no attempt records `kl`"):
        Fidelity().estimate([outcome("1", "random", None)])
