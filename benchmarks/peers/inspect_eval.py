"""Inspect on the same prompts: an OpenAI-compatible provider, one generation, a scorer that matches
the end.
"""

from __future__ import annotations

import os
import sys

from inspect_ai import Task, eval  # noqa: A004 Inspect's own name
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

if __name__ == "__main__":
    url, concurrency, prompts = sys.argv[1:]
    os.environ["LOCAL_API_KEY"] = "none"
    (log,) = eval(
        Task(
            json_dataset(prompts, FieldSpec(input="question", target="tagged")),
            solver=generate(),
            scorer=includes(),
        ),
        model="openai-api/local/served",
        model_base_url=url,
        max_connections=int(concurrency),
        max_samples=int(concurrency),
        display="none",
        log_dir="logs",
    )
    assert log.status == "success", log.error
    assert log.results
    print(log.results.scores[0].metrics["accuracy"].value)
