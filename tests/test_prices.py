"""Prices nobody types: the reply's own cost, the server's list, the package genai-prices."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Bill, Prices
from ponder.core.nouns import cost_of
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.reply import read_cost, read_prices
from ponder.study.prices import FoundPrices, find_prices, price_lines

STUDY = """
problems = {problems}
{more}
[[task]]
name = "chain_sum"
size = 2
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 1000
concurrency = 8
{model}
"""
LISTED = {
    "served": {"prompt": "0.000002", "completion": "0.00001", "input_cache_read": "0.0000005"}
}


def study_for(served, problems: int = 6, *, more: str = "", model: str = "") -> str:
    return STUDY.format(url=served.url, problems=problems, more=more, model=model)


def endpoint(**settings) -> Study:
    return Study(task={"name": "chain_sum", "size": 2}, model={"name": "endpoint", **settings})


# Costs in replies


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.0123}, 0.0123),  # openrouter.ai/docs/use-cases/usage-accounting
        ({"cost": 0}, 0.0),
        # with the user's own key at a provider, `cost` is OpenRouter's fee
        (
            {"cost": 0.95, "is_byok": True, "cost_details": {"upstream_inference_cost": 19}},
            19.95,
        ),
        (
            {"cost": 0.95, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.9}},
            0.95,
        ),
        ({"cost_in_usd_ticks": 37756000}, 0.0037756),  # docs.x.ai/developers/cost-tracking
        ({"cost": {"total_cost": 0.1}}, None),
        ({"cost": -1}, None),
        ({"cost": math.nan}, None),
        ({"cost": math.inf}, None),
        ({"cost": True}, None),
        ({"cost": "0.1"}, None),
        ({}, None),
    ],
)
def test_a_replys_own_cost(usage, cost) -> None:
    assert read_cost(usage) == (None if cost is None else pytest.approx(cost))


def test_costs_add_up_only_if_every_call_has_one() -> None:
    first = Bill(10, 20, 30, cost=0.5)
    second = Bill(1, 2, 3, cost=0.25)
    assert (first + second).cost == 0.75
    assert (Bill() + first).cost == 0.5
    assert (first + Bill()).cost == 0.5
    assert (first + Bill(1, 2, 3)).cost is None
    assert (Bill(1, 2, 3) + first + second).cost is None
    # a reward is another model
    assert (first + Bill(5, 0, 5).as_reward(Prices(1.0, 1.0))).cost == 0.5
    assert second.as_reward(None).reward_cost == 0.25


def test_a_reported_cost_replaces_tokens_times_price() -> None:
    bill = Bill(1_000_000, 0, 1_000_000, cost=0.5)
    assert cost_of(bill, Prices(2.0, 8.0)) == 0.5
    assert cost_of(bill, Prices(2.0, 8.0, currency="EUR")) == 10.0  # it is in dollars
    assert cost_of(bill, None) == 0.5
    assert cost_of(Bill(5, 5, 5), None) is None


# The server's list


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [
        (LISTED["served"], Prices(2.0, 10.0, 0.5)),
        ({"prompt": "0", "completion": "0"}, Prices(0.0, 0.0)),
        ({"prompt": "-1", "completion": "-1"}, None),  # OpenRouter's router
        ({"prompt": "0.000002"}, None),
        ({"prompt": "cheap", "completion": "0.00001"}, None),
        ({"prompt": "nan", "completion": "0.00001"}, None),
        ({"prompt": "0.000002", "completion": "0.00001", "request": "0.1"}, None),
        ({"prompt": 2.0, "completion": 10.0}, None),  # per million: not OpenRouter's unit
        ({"input": 2.0, "output": 10.0}, None),
        (
            {"prompt": "0.000002", "completion": "0.00001", "input_cache_read": "-1"},
            Prices(2.0, 10.0),
        ),
        ("free", None),
        (None, None),
    ],
)
def test_prices_in_a_list(pricing, prices) -> None:
    assert read_prices(pricing) == prices


def test_plan_and_run_name_the_price_its_source_and_date(serve, write, ponder) -> None:
    served = serve(pricing=LISTED)
    write("s.toml", study_for(served))
    line = "prices: served 2.00/10.00 USD per million tokens, from the server's list, 20"
    planned = ponder("plan", "s.toml")
    assert line in planned.stdout
    assert "USD: low" in planned.stdout
    assert json.loads(ponder("plan", "s.toml", "--json").stdout)["prices"]
    result = ponder("run", "s.toml", "--json")
    assert line in result.stderr
    assert "warning" not in result.stderr
    assert json.loads(result.stdout)["cost"] > 0


@pytest.mark.parametrize("pricing", [{"prompt": "-1", "completion": "-1"}, "free", None])
def test_a_price_that_can_not_be_found_refuses_a_cap_on_money(
    serve, write, ponder, pricing
) -> None:
    served = serve(pricing={"served": pricing})
    write("s.toml", study_for(served, more="max_cost = 1.0"))
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert "max_cost can't be kept: `served` has no prices" in result.stderr
        assert "pip install 'ponder-lab[prices]'" in result.stderr
    assert "requests" not in served.state()


def test_a_cap_is_kept_by_listed_prices(serve, write, ponder) -> None:
    served = serve(pricing=LISTED, lengths={"median": 300, "sigma": 1.2})
    write("s.toml", study_for(served, 400, more="max_cost = 0.2"))
    result = ponder("run", "s.toml", "--json")
    tally = json.loads(result.stdout)
    assert tally["capped"]
    assert 0.15 < tally["cost"] <= 0.2


def test_conflicting_sources_are_a_warning(serve, write, ponder) -> None:
    served = serve(pricing=LISTED)
    write("s.toml", study_for(served, model="prices = { input = 2.0, output = 2.0 }"))
    warning = (
        "warning: prices of `served` differ: 2.00/2.00 USD per million tokens from the study, "
        "2.00/10.00 USD per million tokens from the server's list, "
    )
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert warning in result.stderr
        assert "; the first are used" in result.stderr
    assert (
        "served 2.00/2.00 USD per million tokens, from the study" in ponder("plan", "s.toml").stdout
    )
    # a few per cent are no conflict, and other currencies can't be compared
    for prices in ("{ input = 2.05, output = 9.8 }", "{ input = 1, output = 1, currency = 'EUR' }"):
        write("t.toml", study_for(served, model=f"prices = {prices}"))
        assert "differ" not in ponder("plan", "t.toml").stderr


def test_a_server_without_a_list_and_one_of_ones_own(serve, write, ponder) -> None:
    served = serve(models=404)
    write("s.toml", study_for(served))
    assert ponder("plan", "s.toml").exit_code == 0
    own = serve(pricing=LISTED)
    write("own.toml", study_for(own, model='provider = "vllm"'))
    assert "prices:" not in ponder("plan", "own.toml").stdout
    write("quiet.toml", study_for(own, model="probe = false"))
    assert "prices:" not in ponder("plan", "quiet.toml").stdout
    assert "listed" not in own.state()


# Costs of runs


def bill_of(cost: float) -> dict:
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    return {"usage": {**usage, "cost": cost}}


def test_a_cap_counts_what_replies_report(serve, write, ponder) -> None:
    # by its list a reply of 150 tokens costs 0.0007, and at most about 0.011
    served = serve(pricing=LISTED, **bill_of(0.005))
    write("s.toml", study_for(served, 100, more="max_cost = 0.1"))
    result = ponder("run", "s.toml", "--json")
    tally = json.loads(result.stdout)
    requests = served.state()["requests"]
    assert tally["capped"]
    assert tally["cost"] == pytest.approx(0.005 * requests)
    assert 0.08 < tally["cost"] <= 0.1
    with closing(sqlite3.connect("ponder.db")) as db:
        texts = [text for (text,) in db.execute("SELECT details FROM attempt")]
        (measures,) = db.execute("SELECT measures FROM turn LIMIT 1").fetchone()
    assert [json.loads(text)["billed_cost"] for text in texts] == [0.005] * requests
    assert json.loads(measures)["billed_cost"] == 0.005
    study = Study.load("s.toml")
    results = study.results("ponder.db")
    assert {outcome.bill.cost for outcome in results.outcomes} == {0.005}
    assert {each.cost for each in results.attempts()} == {0.005}
    # what is left is forecast from what was charged
    plan = study.plan("ponder.db")
    assert plan.total.cost.expected == pytest.approx(0.005 * plan.total.to_run)


def test_a_charge_above_the_reservation_stops_the_run(serve, write, ponder) -> None:
    served = serve(pricing=LISTED, **bill_of(0.5))
    write("s.toml", study_for(served, 100, more="max_cost = 5.0"))
    result = ponder("run", "s.toml", "--json")
    assert json.loads(result.stdout)["capped"]
    assert "a reply was charged 0.5 USD, where its tokens cost at most" in result.stderr
    assert served.state()["requests"] == 1


def test_costs_without_any_prices(serve, write, ponder) -> None:
    served = serve(**bill_of(0.25))
    write("s.toml", study_for(served, 4))
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["cost"] == 1.0


def test_a_report_offline_shows_the_same_costs(serve, write, ponder, folder) -> None:
    served = serve(pricing=LISTED)
    write("s.toml", study_for(served))
    ponder("run", "s.toml")
    program = """
import json, sys
sys.modules["genai_prices"] = None
import aiohttp
def refuse(*a, **k): raise AssertionError("a report asks no server")
aiohttp.ClientSession = refuse
from ponder import Study
results = Study.load("s.toml").results("ponder.db")
costs = [each.cost for each in results.attempts()]
print(json.dumps([results.prices, results.currency, costs]))
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder
    )
    prices, currency, costs = json.loads(shown.stdout)
    assert prices[0].startswith("served 2.00/10.00 USD per million tokens, from the server's list")
    assert currency == "USD"
    outcomes = Study.load("s.toml").results("ponder.db").outcomes
    expected = [Prices(2.0, 10.0, 0.5).cost(outcome.bill) for outcome in outcomes]
    assert sorted(costs) == sorted(expected)
    assert all(costs)
    assert ponder("report", "s.toml").exit_code == 0
    page = next(Path("reports").rglob("*.html")).read_text("utf-8")
    assert "served 2.00/10.00 USD per million tokens, from the server&#39;s list" in page


def test_prices_of_an_earlier_run_serve_if_none_are_found_now(serve, write, ponder) -> None:
    served = serve(pricing=LISTED)
    write("s.toml", study_for(served, 2))
    ponder("run", "s.toml")
    silent = study_for(served, 4, more="max_cost = 1.0", model="probe = false")
    write("s.toml", silent)
    result = ponder("run", "s.toml")
    assert result.exit_code == 0, result.stderr
    assert "from the server's list" in result.stderr


# The package genai-prices


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"id": "gpt-5-mini", "provider": "openai"}, "gpt-5-mini 0.25/2.00 USD"),
        ({"id": "grok-4", "provider": "xai"}, "grok-4 3.00/15.00 USD"),
        # Together, by its address
        (
            {"id": "openai/gpt-oss-120b", "url": "https://api.together.xyz/v1"},
            "gpt-oss-120b 0.15/0.60 USD",
        ),
    ],
)
def test_the_packages_prices(settings, line) -> None:
    from genai_prices import __version__

    study = endpoint(**settings, probe=False)
    assert find_prices(study.cells) == []
    (found,) = price_lines(study.cells)
    assert line in found
    assert f"from genai-prices {__version__}, 20" in found


def test_tiers_are_named_and_the_base_price_is_used() -> None:
    study = endpoint(id="gemini-2.5-pro", provider="google", protocol="chat", probe=False)
    find_prices(study.cells)
    (found,) = price_lines(study.cells)
    assert "1.25/10.00 USD" in found
    assert "(long prompts cost more)" in found


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "no-such-model-9", "provider": "openai"},
        {"id": "gpt-5-mini", "provider": "vllm"},
        {"id": "gpt-5-mini", "url": "https://example.com/v1"},
    ],
)
def test_a_model_that_the_package_does_not_know(settings) -> None:
    study = endpoint(**settings, probe=False)
    assert find_prices(study.cells) == []
    assert study.cells[0].model.prices is None


@pytest.mark.parametrize(
    ("url", "is_listed"),
    [
        ("http://127.0.0.1:4000/v1", False),
        ("http://10.0.0.7:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://litellm:4000", False),
        ("http://gpu.internal/v1", False),
        ("https://api.groq.com/openai/v1", True),
        ("https://8.8.8.8/v1", True),
    ],
)
def test_a_server_in_ones_own_network_is_in_no_catalog(url, is_listed) -> None:
    """So that no run on such a server loads the package, which takes 12 MB."""
    assert (Endpoint(id="gpt-5-mini", url=url).catalogued() is not None) is is_listed
    assert Endpoint(id="gpt-5-mini", url=url, provider="openai").catalogued() is not None


def test_the_study_comes_before_the_package_which_may_warn() -> None:
    prices = {"input": 1.0, "output": 2.0}
    study = endpoint(id="gpt-5-mini", provider="openai", prices=prices, probe=False)
    (warning,) = find_prices(study.cells)
    assert "1.00/2.00 USD per million tokens from the study, 0.25/2.00" in warning
    assert study.cells[0].model.prices == Prices(1.0, 2.0)


def test_a_judges_prices_are_found_too() -> None:
    judge = {"name": "endpoint", "id": "gpt-5-mini", "provider": "openai", "probe": False}
    method = {"name": "best_of", "n": 2, "reward": {"name": "judge", "model": judge}}
    study = endpoint(id="x", url="https://example.com/v1", probe=False, method=method)
    find_prices(study.cells)
    (asked,) = study.cells[0].asks()
    assert isinstance(asked.prices, FoundPrices)


def test_the_base_never_imports_the_package() -> None:
    program = """
import sys
sys.modules["genai_prices"] = None
from ponder import Study
from ponder.study.prices import find_prices
model = {"name": "endpoint", "id": "gpt-5-mini", "provider": "openai", "probe": False}
study = Study(task={"name": "chain_sum", "size": 2}, model=model)
assert find_prices(study.cells) == [] and study.cells[0].model.prices is None
del sys.modules["genai_prices"]
import ponder.cli, ponder.run.session, ponder.run.plan, ponder.results.results
assert "genai_prices" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_paper_studies_name_no_price() -> None:
    for file in Path(sys.modules["ponder"].__file__ or "").parent.glob("studies/*.toml"):
        assert "prices =" not in file.read_text("utf-8"), file
    study = Study.load("effort-paper")
    for cell in study.cells:
        cell.model.probe = False  # the package alone
    find_prices(study.cells)
    assert all(cell.model.prices for cell in study.cells)
