"""Compares the tokens per CPU second of the pocket model's NumPy engine with transformers' `generate`, same weights.

Both answer the same puzzles greedily, in batches of up to 64, on one thread. `generate` gets batches of equally long
prompts, because left padding would cost it more; our engine refills its batch as replies end.
"""

from __future__ import annotations

import itertools
import time

import torch
from measured import table, verdict
from transformers import AutoModelForCausalLM

from ponder.core import Request
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import CODECS, SHIPPED
from ponder.models.pocket.engine import NumpyEngine
from ponder.tasks.tents import Tents

BATCH, PUZZLES, BUDGET = 64, 256, 400


def prompts(size: int) -> list[list[int]]:
    task = Tents()
    problems = itertools.islice(task.problems(size, seed=1), PUZZLES)
    return [CODECS["tents"].prompt_ids(Request.first_turn(task, problem)) for problem in problems]


def ours(asked: list[list[int]]) -> tuple[int, float]:
    """Tokens generated, and CPU seconds."""
    engine, generations = NumpyEngine(SHIPPED, BATCH), [Generation(prompt, BUDGET) for prompt in asked]
    began = time.process_time()
    for _ in generate_all(engine, generations):
        pass
    return sum(len(generation.tokens) for generation in generations), time.process_time() - began


def theirs(asked: list[list[int]]) -> tuple[int, float]:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32").eval()
    tokens, began = 0, time.process_time()
    for _, group in itertools.groupby(sorted(asked, key=len), key=len):
        alike = list(group)
        for start in range(0, len(alike), BATCH):
            prompt = torch.tensor(alike[start : start + BATCH])
            mask = torch.ones_like(prompt)
            with torch.inference_mode():
                said = model.generate(prompt, attention_mask=mask, max_new_tokens=BUDGET, do_sample=False)
            new = said[:, prompt.shape[1] :]
            ends = (new == model.config.eos_token_id).int()
            tokens += int(torch.where(ends.any(1), ends.argmax(1) + 1, new.shape[1]).sum())
    return tokens, time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    rows, ratios = [], []
    for size in (16, 25, 36):
        asked = prompts(size)
        (mine, my_seconds), (other, other_seconds) = ours(asked), theirs(asked)
        speed, other_speed = mine / my_seconds, other / other_seconds
        ratios.append(other_speed / speed)
        rows.append((size, f"{mine:,}", f"{speed:,.0f}", f"{other_speed:,.0f}", f"{speed / other_speed:.1f}×"))
    print(table(rows, ("size", "tokens", "NumPy tokens/CPU s", "generate tokens/CPU s", "ratio")))
    print()
    print(verdict("generate's speed, of ours", max(ratios), 0.5))


if __name__ == "__main__":
    main()
