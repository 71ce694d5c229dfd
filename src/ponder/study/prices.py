"""Finds what models cost, so that nobody has to type a price.

A reply's own cost, if its server reports one, is what was paid: `Bill.cost`. Forecasts, reservations
and all other replies need prices per token. They come from the study's `prices`, else from the
server's list of models, else from the package `genai-prices` (the extra `prices`), which has a
snapshot of many providers' prices and needs no network. Sources that differ are a warning.

Prices that were found are stored with the run, so that a later report shows the same costs.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ponder.core import Batched, Model, Prices, Served, UserError
from ponder.study.cell import StudyCell

TOLERANCE = 0.05  # prices that differ by less are equal: a snapshot is rounded
PACKAGE = "genai_prices"
# Providers that the package calls by another name.
PACKAGE_NAMES = {"xai": "x-ai"}
# Companies whose models a name alone may be looked up for: others only resell models.
MAKERS = ("anthropic", "deepseek", "google", "openai", "x-ai")
HINT = (
    "pip install 'ponder-lab[prices]' knows the prices of many providers; or write them: "
    "prices = { input = 0.5, output = 2.0 }, per million tokens, in its [[model]]"
)


@dataclass(frozen=True)
class FoundPrices(Prices):
    """Prices that are not the study's, with their source and date."""

    source: str = ""
    date: str = ""


def find_prices(cells: Iterable[StudyCell]) -> list[str]:
    """Find prices for the models for which the study names none; return warnings.

    A model keeps the prices that an earlier call found if none are found now.
    """
    groups = _by_server(cells)
    first_models = [models[0] for models in groups.values()]
    served = [model for model in first_models if isinstance(model, Served)]
    if not served:
        return []
    # In a thread, because a notebook's own thread already runs an event loop.
    with ThreadPoolExecutor(1, "ponder-prices") as pool:
        listed = pool.submit(asyncio.run, _listed_prices(served)).result()
    warnings = []
    for models in groups.values():
        model = models[0]
        if not isinstance(model, Served):
            continue
        sources: list[FoundPrices] = []
        for prices in (listed[id(model)], _packaged_prices(model)):
            if prices is not None:
                sources.append(prices)
        for same_model in models:
            current = same_model.prices
            is_from_study = current is not None and not isinstance(current, FoundPrices)
            if sources and not is_from_study:
                same_model.prices = _discounted(sources[0], same_model)
        warning = _conflict(model, sources)
        if warning:
            warnings.append(warning)
    return warnings


def found_prices(cells: Iterable[StudyCell]) -> dict[str, dict[str, Any]]:
    """Return the prices that were found, by server and model, as JSON."""
    prices_by_server = {}
    for server, models in _by_server(cells).items():
        for model in models:
            if isinstance(model.prices, FoundPrices):
                prices_by_server[server] = asdict(model.prices)
    return prices_by_server


def restore_prices(cells: Iterable[StudyCell], stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Give models the prices that an earlier run found, where the study names none."""
    if not stored:
        return
    for server, models in _by_server(cells).items():
        if server not in stored:
            continue
        prices = FoundPrices(**stored[server])
        for model in models:
            if model.prices is None:
                model.prices = _discounted(prices, model)


def price_lines(cells: Iterable[StudyCell]) -> list[str]:
    """Return for each model behind a server its prices, their source and date."""
    lines: dict[str, None] = {}
    for models in _by_server(cells).values():
        for model in models:
            if model.prices is not None:
                lines[f"{model.title()} {_text(model.prices)}, {_source(model.prices)}"] = None
    return list(lines)


def _by_server(cells: Iterable[StudyCell]) -> dict[str, list[Model]]:
    """Group the models by the server that answers for them, including those that methods ask."""
    groups: dict[str, dict[int, Model]] = {}
    for cell in cells:
        for model in (cell.model, *cell.other_models()):
            server = model.server()
            if server:
                groups.setdefault(server, {})[id(model)] = model
    return {server: list(models.values()) for server, models in groups.items()}


async def _listed_prices(models: Sequence[Model]) -> dict[int, FoundPrices | None]:
    """Return the prices in each server's list of models, by the model's id in memory."""

    async def listed(model: Model) -> FoundPrices | None:
        assert isinstance(model, Served)
        try:
            prices = await model.listed_prices()
        except UserError:  # such as a missing key: a run reports it
            return None
        if prices is None:
            return None
        return _found(prices, "the server's list")

    all_prices = await asyncio.gather(*[listed(model) for model in models])
    return {id(model): prices for model, prices in zip(models, all_prices, strict=True)}


def _packaged_prices(model: Served) -> FoundPrices | None:
    """Return the prices that the package knows, at the base rate; None if it doesn't know any."""
    catalogued = model.catalogued()
    if catalogued is None or importlib.util.find_spec(PACKAGE) is None:
        return None
    from genai_prices import __version__, data_snapshot
    from genai_prices.types import TieredPrices

    provider = PACKAGE_NAMES.get(catalogued.provider, catalogued.provider) or None
    url = None
    if not provider:
        url = catalogued.url or None
    snapshot = data_snapshot.get_snapshot()
    try:
        seller, info = snapshot.find_provider_model(catalogued.model, None, provider, url)
    except LookupError:
        return None
    if provider is None and url is None and seller.id not in MAKERS:
        return None
    rates = info.get_prices(datetime.now(UTC))
    rates_by_name = {
        "input": rates.input_mtok,
        "output": rates.output_mtok,
        "cached_input": rates.cache_read_mtok,
    }
    amounts: dict[str, float | None] = {}
    source = f"genai-prices {__version__}"
    for name, rate in rates_by_name.items():
        if isinstance(rate, TieredPrices):
            amounts[name] = float(rate.base)
        else:
            amounts[name] = None if rate is None else float(rate)
    if amounts["input"] is None or amounts["output"] is None:
        return None
    if isinstance(rates.input_mtok, TieredPrices) or isinstance(rates.output_mtok, TieredPrices):
        source += " (long prompts cost more)"
    return _found(Prices(amounts["input"], amounts["output"], amounts["cached_input"]), source)


def _found(prices: Prices, source: str) -> FoundPrices:
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return FoundPrices(prices.input, prices.output, prices.cached_input, source=source, date=date)


def _discounted(prices: FoundPrices, model: Model) -> FoundPrices:
    """Return prices with the discount that the model gets, if it sends batch jobs."""
    discount = 0.0
    if isinstance(model, Batched) and model.sends_batches():
        discount = model.batch_discount
    return replace(prices, discount=discount)


def _conflict(model: Model, sources: Sequence[FoundPrices]) -> str:
    """Return a warning if a source disagrees with the prices that are used; else ""."""
    prices = model.prices
    if prices is None or prices.currency != "USD":
        return ""
    for source in sources:
        if _differ(prices.input, source.input) or _differ(prices.output, source.output):
            return (
                f"warning: prices of `{model.title()}` differ: {_text(prices)} {_source(prices)}, "
                f"{_text(source)} {_source(source)}; the first are used"
            )
    return ""


def _differ(first: float, second: float) -> bool:
    return abs(first - second) > TOLERANCE * max(first, second)


def _text(prices: Prices) -> str:
    paid = 1 - prices.discount
    amounts = f"{_amount(paid * prices.input)}/{_amount(paid * prices.output)}"
    in_jobs = " in batch jobs" if prices.discount else ""
    return f"{amounts} {prices.currency} per million tokens{in_jobs}"


def _amount(price: float) -> str:
    """Return a price with at least two digits after the point."""
    text = f"{price:.6f}".rstrip("0")
    integer, _, decimals = text.partition(".")
    return f"{integer}.{decimals:0<2}"


def _source(prices: Prices) -> str:
    if isinstance(prices, FoundPrices):
        return f"from {prices.source}, {prices.date}"
    return "from the study"
