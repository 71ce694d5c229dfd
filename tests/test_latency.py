"""Seconds: what a stream and a server tell of a reply, their quantiles, and the figure `latency`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import made_up
import numpy as np
import pytest
import virtual_time
from endpoint_calls import ask
from scipy import stats
from test_endpoint_stream import END, TEXT, event, piece

from ponder.core import Bill, Completion, Outcome
from ponder.figures.latency import Latency
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.chat import assemble, read, read_usage
from ponder.models.endpoint.reply import bill
from ponder.models.endpoint.stream import Deadline
from ponder.models.endpoint.timing import StreamTimes, reported_measures, stream_measures
from ponder.run.attempt import _mean_measures
from ponder.stats.distributions import binomial_at_most
from ponder.stats.quantiles import quantile

TIMINGS = {"prompt_n": 7, "prompt_ms": 0.02, "predicted_n": 12, "predicted_ms": 0.055}
METRICS = {"time_to_first_token_ms": 85.0, "generation_time_ms": 1270.0, "queue_time_ms": 12.0}
THOUGHT = piece(reasoning_content="t")


def usage(completion: int, reasoning: int = 0) -> bytes:
    details = {"reasoning_tokens": reasoning}
    counts = {"prompt_tokens": 9, "completion_tokens": completion}
    return event({"choices": [], "usage": {**counts, "completion_tokens_details": details}})


def streamed(*chunks: tuple[float, bytes]) -> dict[str, float]:
    """The measures of a stream whose chunks come after so many seconds each."""

    async def network() -> AsyncIterator[bytes]:
        for seconds, chunk in chunks:
            await asyncio.sleep(seconds)
            yield chunk

    async def measures() -> dict[str, float]:
        deadline = Deadline(1800, 600)
        times = StreamTimes(deadline)
        reply = read(await assemble(deadline.watch(network()), times.on_text))
        return stream_measures(times, 0.0, reply, bill(reply, 1.0))

    return virtual_time.run(measures())


def test_a_stream_times_its_tokens() -> None:
    measures = streamed((90.0, TEXT), *[(0.5, TEXT)] * 4, (3.0, END), (0.0, usage(5)))
    expected = {"first_token_seconds": 90.0, "decode_seconds": 2.0, "tokens_per_second": 2.0}
    assert measures == pytest.approx(expected)


def test_thinking_that_is_streamed_counts() -> None:
    texts = [(1.0, THOUGHT), (1.0, THOUGHT), (1.0, TEXT), (1.0, TEXT)]
    measures = streamed(*texts, (0.0, END + usage(4, 2)))
    assert (measures["decode_seconds"], measures["tokens_per_second"]) == pytest.approx((3.0, 1.0))


def test_an_event_may_hold_several_tokens() -> None:
    measures = streamed((1.0, TEXT), (5.0, TEXT), (5.0, TEXT + TEXT), (0.0, END + usage(400)))
    assert measures["tokens_per_second"] == pytest.approx(400 * 3 / 4 / 10)


@pytest.mark.parametrize(
    "chunks",
    [
        [(3.0, TEXT), (1.0, END + usage(50))],  # one piece
        [(3.0, TEXT * 50), (1.0, END + usage(50))],  # held back by a proxy
        [(3.0, TEXT * 500), (0.001, TEXT * 500), (1.0, END + usage(1000))],
        [(3.0, TEXT), (1.0, TEXT), (1.0, END + usage(900, 890))],  # hidden thinking
    ],
)
def test_no_rate_where_the_decoding_was_not_seen(chunks) -> None:
    assert streamed(*chunks) == {"first_token_seconds": 3.0}


def test_no_rate_from_tokens_that_nobody_counted() -> None:
    measures = streamed((1.0, TEXT), (1.0, TEXT), (1.0, END))
    assert measures == {"first_token_seconds": 1.0, "decode_seconds": 1.0}


def test_no_text_has_no_times() -> None:
    assert streamed((1.0, END)) == {}


@pytest.mark.parametrize("stream", [False, True])
def test_llama_cpp_tells_its_work_and_the_rest_is_waiting(serve, stream) -> None:
    served = serve(fields={"timings": TIMINGS})
    (reply,) = ask(Endpoint(id="m", url=served.url, stream=stream), 1)
    assert reply.measures["work_seconds"] == pytest.approx(75e-6)
    assert reply.measures["decode_seconds"] == pytest.approx(55e-6)
    assert reply.measures["tokens_per_second"] == pytest.approx(11 / 55e-6)
    waited = reply.measures["wait_seconds"]
    assert waited + reply.measures["work_seconds"] == pytest.approx(reply.bill.seconds)
    assert ("first_token_seconds" in reply.measures) == stream


def test_a_server_cannot_have_worked_longer_than_the_call(serve) -> None:
    served = serve(fields={"timings": TIMINGS | {"prompt_ms": 9e8}})
    (reply,) = ask(Endpoint(id="m", url=served.url), 1)
    assert reply.measures == {}


def reported(usage: Any = None, **more: Any) -> dict[str, float]:
    return reported_measures(usage, read_usage(usage), **more)


def test_what_servers_report() -> None:
    vllm = reported({"completion_tokens": 128}, metrics=METRICS)
    assert vllm == pytest.approx(
        {"work_seconds": 1.355, "decode_seconds": 1.27, "tokens_per_second": 100}
    )
    groq = {"queue_time": 0.2, "prompt_time": 0.05, "completion_time": 0.5, "total_time": 0.55}
    assert reported(groq) == pytest.approx({"work_seconds": 0.55})
    one_token = reported(timings=TIMINGS | {"predicted_n": 1})
    assert one_token == pytest.approx({"work_seconds": 75e-6})


@pytest.mark.parametrize("value", [None, "12", True, -1.0, math.nan, math.inf, 1e300, [1]])
def test_a_time_that_cannot_be_one_is_none(value) -> None:
    assert reported(timings=TIMINGS | {"prompt_ms": value}) == {}
    assert reported(metrics=METRICS | {"generation_time_ms": value}) == {}
    assert reported({"prompt_time": 1.0, "completion_time": value}) == {}


def test_a_turn_without_a_measure_does_not_count() -> None:
    def turn(**measures: float) -> Completion:
        return Completion("", "", "end", Bill(), measures)

    means = _mean_measures([turn(a=1.0), turn(a=3.0, b=4.0), turn()])
    assert means == {"a": 2.0, "b": 4.0}


# Quantiles


def test_the_binomial_is_scipys() -> None:
    for k, n, p in ((-1, 5, 0.3), (0, 5, 0.3), (17, 20, 0.95), (90, 100, 0.9), (7, 7, 0.5)):
        assert binomial_at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), abs=1e-12)


@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.9, 0.95])
def test_a_quantile_is_numpys(fraction) -> None:
    rng = np.random.default_rng(3)
    for n in (1, 2, 7, 20, 100):
        numbers = rng.lognormal(size=n)
        expected = np.quantile(numbers, fraction, method="averaged_inverted_cdf")
        assert quantile(numbers, np.arange(n), fraction).value == pytest.approx(expected)


def test_its_interval_is_between_order_statistics() -> None:
    """For the median of 20: the 6th and the 15th (Conover 1999, table A3)."""
    numbers = np.arange(1.0, 21.0)
    median = quantile(numbers, np.arange(20), 0.5)
    assert (median.low, median.high) == (6, 15)


@pytest.mark.parametrize(("fraction", "needed"), [(0.9, 36), (0.95, 72)])
def test_the_upper_end_is_open_where_the_sample_is_too_small(fraction, needed) -> None:
    for n in (needed - 1, needed):
        numbers = np.arange(float(n))
        tail = quantile(numbers, np.arange(n), fraction)
        assert math.isinf(tail.high) == (n < needed)
        assert tail.low < tail.value


def test_every_problem_counts_once() -> None:
    numbers = np.array([1.0, 9.0, 9.0, 9.0, 9.0, 1.0, 1.0])
    problem = np.array([0, 1, 1, 1, 1, 2, 3])
    assert quantile(numbers, problem, 0.5).value == 1.0


@pytest.mark.parametrize("fraction", [0.5, 0.95])
@pytest.mark.parametrize(("problems", "samples", "shared"), [(40, 1, 0.0), (100, 4, 0.8)])
def test_intervals_cover(fraction, problems, samples, shared) -> None:
    rng = np.random.default_rng(5)
    truth = math.exp(stats.norm.ppf(fraction))
    problem = np.repeat(np.arange(problems), samples)
    missed = 0
    for _ in range(400):
        between = math.sqrt(shared) * rng.standard_normal(problems)[problem]
        within = math.sqrt(1 - shared) * rng.standard_normal(problems * samples)
        estimate = quantile(np.exp(between + within), problem, fraction)
        missed += not estimate.low <= truth <= estimate.high
    assert missed / 400 < 0.08


# The figure


def attempts(model: str, problems: int = 100, **details: float) -> list[Outcome]:
    """Attempts that take 1, 2, 3 … seconds."""
    rows = []
    for n in range(problems):
        scaled = {name: value * (n + 1) for name, value in details.items()}
        row = made_up.outcome("t", model, 4, f"p{n}", "right", details=scaled)
        rows.append(row._replace(seconds=n + 1.0))
    return rows


def cell(tables: Any, quantity: str, tail: str) -> dict[str, Any]:
    [row] = [
        row for row in tables["quantiles"] if (row["quantity"], row["tail"]) == (quantity, tail)
    ]
    return row


def test_a_tail_is_the_slow_one() -> None:
    tables = Latency().estimate(attempts("m", tokens_per_second=10.0, wait_seconds=0.1))
    slow = cell(tables, "seconds", "slowest 5 %")
    assert (slow["percentile"], slow["value"]) == ("p95", 95.5)
    speed = cell(tables, "tokens_per_second", "slowest 5 %")
    assert (speed["percentile"], speed["value"]) == ("p5", 55.0)
    (finding,) = Latency().findings(tables)
    assert finding.startswith("m: seconds per attempt 50.5 [40, 61] at the median and 95.5 [90, ")
    assert "at p5" in finding


def test_without_a_stream_it_says_that_the_queue_is_included() -> None:
    tables = Latency().estimate(attempts("m", problems=20))
    assert {row["quantity"] for row in tables["quantiles"]} == {"seconds"}
    finding, queue = Latency().findings(tables)
    assert "no upper bound" in finding
    assert "include the wait in the server's queue" in queue
    subtitle = " ".join(Latency().draw(tables).to_dict()["title"]["subtitle"])
    assert queue.removesuffix(".") in subtitle
    streamed = Latency().estimate(attempts("m", first_token_seconds=0.1))
    assert not any("queue, which no" in text for text in Latency().findings(streamed))


def test_attempts_without_the_measure_are_left_out_and_counted() -> None:
    mixed = attempts("m", first_token_seconds=0.5)[:30] + attempts("m")[30:]
    tables = Latency().estimate(mixed)
    row = cell(tables, "first_token_seconds", "median")
    assert (row["attempts"], row["measured"], row["value"]) == (100, 30, 7.75)
    assert "(measured in 30 of 100 attempts)" in Latency().findings(tables)[0]


def test_an_open_interval_ends_in_an_arrow() -> None:
    for problems, arrows in ((20, 2), (100, 0)):
        chart = Latency().draw(Latency().estimate(attempts("m", problems))).to_dict()
        (panel,) = chart["concat"]
        _, arrow, _, _ = panel["layer"]
        data = arrow["data"]
        marks = data["values"] if "values" in data else chart["datasets"][data["name"]]
        assert len(marks) == arrows
