"""kvpress on the texts of benchmarks/cache_fidelity.py: drift from the full cache, and CPU seconds
per token.

`DecodingPress` prunes after every `interval` steps. Its predictions don't depend on whether the
tokens in between are read one by one, so `Chunked` reads them in one pass and then calls the same
`compress` with what the last step would have passed: one row of attention, the rotary embedding of
one position, and the hidden states since the last pruning. `steps` reads one by one with
`DecodingPress` itself, for the time per token, and to check that both predict the same.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path

import kvpress
import torch
from transformers import AutoModelForCausalLM, DynamicCache

IN_ORDER = ", in order"
PRESSES = {
    "random": kvpress.RandomPress(),
    "random, seed=0": kvpress.RandomPress(seed=0),
    "streaming": kvpress.StreamingLLMPress(),
    "snapkv": kvpress.SnapKVPress(),
    "h2o": kvpress.ObservedAttentionPress(),
    "last_query": kvpress.TOVAPress(),
    "knorm": kvpress.KnormPress(),
    "keydiff": kvpress.KeyDiffPress(),
    "expected_attention": kvpress.ExpectedAttentionPress(),
    "lagkv": kvpress.LagKVPress(),
}


class Chunked(kvpress.DecodingPress):
    """Prunes after each pass of `interval` tokens; in order, if asked, where kvpress leaves the
    order of top-k.
    """

    in_order = False

    def forward_hook(self, module, input, kwargs, output):  # noqa: A002, ARG002 the interface's
        cache, states = kwargs["past_key_values"], kwargs["hidden_states"]
        layer = cache.layers[module.layer_idx]
        if states.shape[1] == self.compression_interval:
            last = {
                **kwargs,
                "position_embeddings": tuple(
                    part[:, -1:] for part in kwargs["position_embeddings"]
                ),
            }
            attention = None if output[1] is None else output[1][:, :, -1:]
            layer.keys, layer.values = self.compress(
                module, states, layer.keys, layer.values, attention, last
            )
        return output

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if not self.in_order:
            return super().compress(module, hidden_states, keys, values, attentions, kwargs)
        press = self.base_press
        press.compression_ratio = self._find_target_compression_ratio(
            keys.shape[2], self.target_size
        )
        scores = press.score(module, hidden_states, keys, values, attentions, kwargs)
        press.compression_ratio = 0.0
        kept = (
            scores.topk(self.target_size, dim=-1)
            .indices.sort(-1)
            .values[..., None]
            .expand(-1, -1, -1, keys.shape[3])
        )
        return keys.gather(2, kept), values.gather(2, kept)


def read(
    model, cache, ids: torch.Tensor, start: int, chunk: int, first: int, every: int
) -> torch.Tensor:
    """Log-probabilities after every n-th token, counted from `first`; `start` is where the cache
    ends.
    """
    logits = []
    for at in range(start, ids.shape[1] - 1, chunk):
        places = torch.arange(at, min(at + chunk, ids.shape[1] - 1))
        # `cache_position` is for the mask, which has as many columns as the cache; keys are rotated
        # by `position_ids`.
        columns = torch.arange(len(places)) + cache.layers[0].keys.shape[2]
        out = model.model(
            ids[:, places], past_key_values=cache, position_ids=places[None], cache_position=columns
        )
        logits.append(model.lm_head(out.last_hidden_state[0, (first - at) % every :: every]))
    return torch.cat(logits).float().log_softmax(-1)


def steps(model, cache, ids: torch.Tensor, start: int, count: int) -> tuple[torch.Tensor, float]:
    """Log-probabilities after each of these tokens, read one by one, with positions as `generate`
    gives them.
    """
    logits, began = [], time.process_time()
    for place in range(start, start + count):
        at = torch.tensor([place])
        out = model(ids[:, at], past_key_values=cache, position_ids=at[None], cache_position=at)
        logits.append(out.logits[0])
    seconds = (time.process_time() - began) / count
    return torch.cat(logits).float().log_softmax(-1), seconds


@torch.inference_mode()
def main(order: dict) -> dict:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32).eval()
    ids, target, interval = torch.tensor([order["ids"]]), order["target"], order["interval"]
    compared = order["first"], order["every"]
    # Until the first pruning all caches hold the same, so the presses start where the cache has
    # `target` tokens.
    whole = DynamicCache()
    model.model(ids[:, :target], past_key_values=whole)
    until = copy.deepcopy(whole)
    full = read(model, whole, ids, target, interval, *compared)
    weights, results = full.exp(), {}
    for way in order["presses"]:
        name = way.removesuffix(IN_ORDER)
        model.set_attn_implementation("eager" if name == "h2o" else "sdpa")
        press = Chunked(PRESSES[name], compression_interval=interval, target_size=target)
        press.in_order = name != way
        torch.manual_seed(order["seed"])
        with press(model):
            own = read(model, copy.deepcopy(until), ids, target, interval, *compared)
        kl, same = (weights * (full - own)).sum(-1), (full.argmax(-1) == own.argmax(-1)).float()
        results[way] = {"kl": float(kl.sum()), "same": float(same.sum())}
    timed, checked = {}, {}
    for name in order["timed"]:
        model.set_attn_implementation("eager" if name == "h2o" else "sdpa")
        if name == "full":
            whole.crop(ids.shape[1] - interval - 8)
            _, timed["full"] = steps(model, whole, ids, ids.shape[1] - interval - 8, interval)
            continue
        logs = []
        for kind in (kvpress.DecodingPress, Chunked):
            cache = copy.deepcopy(until)
            torch.manual_seed(order["seed"])
            with kind(PRESSES[name], compression_interval=interval, target_size=target)(model):
                if kind is Chunked:
                    read(model, cache, ids[:, : target + interval + 1], target, interval, *compared)
                else:
                    _, timed[name] = steps(model, cache, ids, target, interval)
                logs.append(steps(model, cache, ids, target + interval, 4)[0])
        checked[name] = float((logs[0].exp() * (logs[0] - logs[1])).sum(-1).max())
    return {"drift": results, "compared": len(full), "seconds": timed, "chunked": checked}


if __name__ == "__main__":
    asked, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(main(json.loads(asked.read_text()))))
