"""kvpress on the same texts: how far each of its presses drifts from the full cache, and CPU seconds a token.

Its `DecodingPress` counts steps, so a text is read one token at a time; places are given as `generate` gives them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from kvpress import DecodingPress, ObservedAttentionPress, RandomPress, SnapKVPress, StreamingLLMPress, TOVAPress
from transformers import AutoModelForCausalLM, DynamicCache


def read(model, prompt: list[int], said: list[int]) -> tuple[torch.Tensor, float]:
    """Log-probabilities at each place whose successor was said, and the seconds of all but the prompt's pass."""
    cache, found = DynamicCache(), []
    ids = torch.tensor([prompt + said])
    places = torch.arange(ids.shape[1])
    found.append(model(ids[:, : len(prompt)], past_key_values=cache).logits[0, -1:])
    began = time.process_time()
    for place in range(len(prompt), ids.shape[1] - 1):
        at = places[place : place + 1]
        out = model(ids[:, at], past_key_values=cache, position_ids=at[None], cache_position=at)
        found.append(out.logits[0])
    return torch.cat(found).float().log_softmax(-1), time.process_time() - began


@torch.inference_mode()
def main(asked: Path) -> None:
    torch.set_num_threads(1)
    order = json.loads(asked.read_text())
    presses = {
        "streaming": StreamingLLMPress(n_sink=4),
        "random": RandomPress(seed=0),
        "last_query": TOVAPress(),
        # Its buffer of hidden states starts anew at each cut and must be longer than the window.
        "snapkv": SnapKVPress(window_size=order["interval"] - 1, kernel_size=7),
        "h2o": ObservedAttentionPress(),
    }
    models = {
        how: AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32, attn_implementation=how).eval()
        for how in ("sdpa", "eager")
    }
    full, took = zip(*(read(models["sdpa"], *text) for text in order["texts"]), strict=True)
    results = {"full": {"kl": 0.0, "seconds": sum(took) / sum(len(whole) - 1 for whole in full)}}
    for name, press in presses.items():
        model = models["eager" if name == "h2o" else "sdpa"]
        kls, seconds = [], 0.0
        for text, whole in zip(order["texts"], full, strict=True):
            with DecodingPress(press, compression_interval=order["interval"], target_size=order["target"])(model):
                ours, spent = read(model, *text)
            kls.append((whole.exp() * (whole - ours)).sum(-1))
            seconds += spent
        kl = torch.cat(kls)
        results[name] = {"kl": float(kl.mean()), "seconds": seconds / (len(kl) - len(kls))}
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
