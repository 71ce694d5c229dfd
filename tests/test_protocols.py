"""All four protocols in one study: dials, bills, conversations and faults are the same in each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.core import Basis, Outcome
from ponder.results.results import Results

PRICES = {
    "gpt-5-mini": {"input": 0.25, "output": 2.0},
    "claude-sonnet-4-5": {"input": 3.0, "output": 15.0},
    "gemini-2.5-flash": {"input": 0.3, "output": 2.5},
    "Qwen/Qwen3-8B": {"input": 0.05, "output": 0.1},
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-not-a-real-key-0000000000")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03-not-a-real-key-00000")
    monkeypatch.setenv("GEMINI_API_KEY", "AIzaSyA-not-a-real-key-000000000000000")


def models(url: str) -> list[dict[str, Any]]:
    """The models of the built-in study `thinking`, and one on a server of your own."""
    tables = [
        {
            "id": "gpt-5-mini",
            "url": url,
            "provider": "openai",
            "protocol": "responses",
            "key": "$OPENAI_API_KEY",
            "effort": ["low", "medium", "high"],
        },
        {
            "id": "claude-sonnet-4-5",
            "url": url,
            "provider": "anthropic",
            "key": "$ANTHROPIC_API_KEY",
            "think": [1024, 4096, 16384],
        },
        {
            "id": "gemini-2.5-flash",
            "url": url.replace("/v1", "/v1beta"),
            "provider": "google",
            "key": "$GEMINI_API_KEY",
            "thinking": [False, True],
        },
        {
            "id": "Qwen/Qwen3-8B",
            "url": url,
            "provider": "vllm",
            "think": [512, 2048],
        },
    ]
    for table in tables:
        table |= {"name": "endpoint", "budget": 32768, "prices": PRICES[table["id"]]}
    return tables


@pytest.fixture
def study(serve, tmp_path: Path) -> Callable[..., Results]:
    def run(problems: int, **faults: Any) -> Results:
        server = serve(lengths={"median": 4000, "sigma": 0.15}, **faults)
        made = Study(
            task={"name": "chain_sum", "size": 3},
            model=models(server.url),
            figure=[{"name": "frontier"}, {"name": "accuracy"}, {"name": "latency"}],
            problems=problems,
            samples=2,
        )
        return made.run(store=tmp_path / "thinking.db", progress=False)

    return run
