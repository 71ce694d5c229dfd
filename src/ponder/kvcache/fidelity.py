"""How far a pruned cache's predictions drift from the full cache's, on given texts.

    from ponder.kvcache import CacheBudget, fidelity

    budget = CacheBudget(budget=512, window=64, ratio=0.5)
    print(fidelity(model, tokenizer, texts, ["random", "snapkv", "keydiff"], budget))

Between two prunings the cache only grows, so all tokens up to the next pruning go through the model in one pass, with
the same results as one at a time: measuring a policy costs about as much as reading the text. All policies read the
text side by side, so that the full cache reads it once, and the log-probabilities of one pass at a time are held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ponder.core import CacheBudget, Policy, UserError, plugins
from ponder.core.scoring import fitted_to
from ponder.core.text import count
from ponder.kvcache.cache import SelectCache

CHUNK = 256  # tokens per forward pass if no pruning comes earlier
Text: TypeAlias = str | tuple[str, str] | Sequence[int]  # a text, a prompt and its continuation, or token ids
Pruned: TypeAlias = Policy | tuple[Policy, CacheBudget]  # a policy, and its budget if that isn't the others'


@dataclass(frozen=True)
class Drift:
    """The drift on one text."""

    kl: float  # mean per token, in nats: divergence of the pruned cache's next-token distribution from the full one's
    agrees: float  # fraction of tokens after which both predict the same most likely token
    tokens: int  # that were compared
    bytes: float = 0.0  # of the tokens in the pruned cache, mean over the tokens
    peak: float = 0.0  # of the pruned cache's columns, the most; they are more if heads keep different numbers


def drift(model: Any, prompt: list[int], reply: list[int], policy: Policy, budget: CacheBudget) -> Drift:
    """Compare the full cache with one pruned by a policy, over the tokens of a reply."""
    [one] = drifts(model, prompt, reply, [policy], budget)
    return one


@torch.no_grad()
def drifts(
    model: Any,
    prompt: list[int],
    reply: list[int],
    policies: Sequence[Pruned],
    budget: CacheBudget,
    *,
    every: int = 1,
) -> list[Drift]:
    """The same for several policies, which read the text side by side, compared after every n-th token."""
    ids, start = torch.tensor([prompt + reply], device=model.device), len(prompt)
    full = SelectCache(model, plugins.load("policies", "full", Path())(), None)
    pairs = [one if isinstance(one, tuple) else (one, budget) for one in policies]
    readers = [_Reader(SelectCache(model, policy, own, prompt=start)) for policy, own in pairs]
    position, last = 0, ids.shape[1] - 1
    while position < last:
        # Up to the first pruning of any: how many tokens are held depends on the budget, not on the policy.
        new = min(tokens_until_pruning(reader.cache) for reader in readers)
        end = start if position < start else min(position + new, last)
        first = start - 1 - position if position < start else (start - 1 - position) % every
        chunk, compared = ids[:, position:end], range(first, end - position, every)
        expected = _log_probs(model, chunk, full, compared)
        weights, likeliest = expected.exp(), expected.argmax(-1)
        for reader in readers:
            before, own = reader.cache.tokens, _log_probs(model, chunk, reader.cache, compared)
            reader.kl += float((weights * (expected - own)).sum())
            reader.agreed += int((likeliest == own.argmax(-1)).sum())
            reader.compared += len(compared)
            counted = end - max(position, start - 1)  # tokens of the reply, and the last one of the prompt
            reader.held += range(before + chunk.shape[1] - counted + 1, before + chunk.shape[1] + 1)
        position = end
    return [reader.drift() for reader in readers]


class _Reader:
    """A text that is read with a pruned cache: how its predictions differ from the full cache's, added up."""

    def __init__(self, cache: SelectCache) -> None:
        self.cache, self.kl, self.agreed, self.compared = cache, 0.0, 0, 0
        self.held: list[int] = []  # tokens per head after each token, before pruning; the prompt counts as one

    def drift(self) -> Drift:
        size, count = self.cache.token_bytes, max(1, self.compared)
        mean, most = sum(self.held) / max(1, len(self.held)), max(self.cache.peaks, default=0)
        return Drift(self.kl / count, self.agreed / count, self.compared, size * mean, float(size * most))


def _log_probs(model: Any, ids: Tensor, cache: SelectCache, compared: range) -> Tensor:
    """Log-probabilities of the next token after these tokens; the others don't go through the output layer."""
    count = ids.shape[1]
    whole = compared.step == 1 and compared.stop == count
    keep = count - compared.start if whole else torch.tensor(compared, dtype=torch.long, device=ids.device)
    logits: Tensor = model(ids, past_key_values=cache, logits_to_keep=keep).logits[0]
    return logits.float().log_softmax(-1)


def tokens_until_pruning(cache: SelectCache) -> int:
    """How many tokens one forward pass may add; the last of them may cause a pruning."""
    if cache.budget is None:
        return CHUNK
    due = cache.budget.budget if cache.budget.ratio is not None else cache.budget.budget + 1
    return min(CHUNK, max(1, due - cache.tokens))


@dataclass(frozen=True)
class FidelityRow:
    """What one policy keeps of the full cache's predictions, averaged over texts that weigh equally.

    `…_se` are standard errors over texts; NaN with a single text.
    """

    policy: str
    kl: float  # nats per token
    kl_se: float
    agrees: float  # fraction of tokens with the same most likely token
    agrees_se: float
    less: float  # this policy's KL less the reference's, text by text
    less_se: float
    texts: int
    tokens: int
    bytes: float  # of the pruned cache
    by_text: tuple[Drift, ...] = ()  # for comparisons with what was measured elsewhere on the same texts


@dataclass(frozen=True)
class FidelityTable:
    """Prints as a table; `pandas.DataFrame(table.rows)` makes a frame of it."""

    rows: tuple[FidelityRow, ...]
    reference: str

    def __str__(self) -> str:
        width = max(len("policy"), *(len(row.policy) for row in self.rows))
        lines = [f"{'policy':{width}}  KL, nats per token  same top token  KL less {self.reference}'s"]
        for row in self.rows:
            less = "" if row.policy == self.reference else _with_error(row.less, row.less_se, "+.4f")
            kl, agrees = _with_error(row.kl, row.kl_se, ".4f"), _with_error(row.agrees, row.agrees_se, ".1%")
            lines.append(f"{row.policy:{width}}  {kl:>18}  {agrees:>14}  {less}".rstrip())
        texts, tokens = count(self.rows[0].texts, "text"), f"{self.rows[0].tokens:,} tokens"
        more = "± one standard error over texts" if self.rows[0].texts > 1 else "several would tell how sure this is"
        return "\n".join([*lines, f"{texts}, {tokens}; {more}"])


def _with_error(value: float, error: float, form: str) -> str:
    return f"{value:{form}}" if math.isnan(error) else f"{value:{form}} ± {error:{form.removeprefix('+')}}"


def fidelity(
    model: Any,
    tokenizer: Any,
    texts: Iterable[Text],
    policies: Sequence[str | Policy] | Mapping[str, Pruned],
    budget: CacheBudget,
    *,
    prompt: int = 64,
    every: int = 1,
    reference: str | None = None,
) -> FidelityTable:
    """Which policy's predictions stay closest to the full cache's, on the same texts, with standard errors.

    A text may be a prompt and its continuation; of a plain text, the first `prompt` tokens are the prompt. To compare
    budgets, give some policies their own: `{"small": (Snapkv(), CacheBudget(256, 64, 0.5)), …}`. Predictions are
    compared after every token, or only after every n-th (`every`), which takes less time if the vocabulary is large.
    The differences are to `reference`, by default `random` if it is measured, else the first policy.
    """
    if isinstance(texts, str):
        raise UserError("`texts` is one text, not a list of them", hint="[text], or its parts")
    if every < 1:
        raise UserError(f"every is a number of tokens, at least 1, not {every}")
    named = _named(policies, model, tokenizer, budget)
    smallest = min(own.budget for _, own in named.values())
    reference = reference or ("random" if "random" in named else next(iter(named)))
    if reference not in named:
        raise UserError(f"the reference `{reference}` isn't measured", hint=f"one of {', '.join(named)}")
    by_text = []
    for number, text in enumerate(texts):
        before, after = _tokens(tokenizer, text, prompt)
        if len(before) + len(after) <= smallest:
            size = len(before) + len(after)
            what = f"text {number} has {size} tokens, so that a budget of {smallest} evicts nothing"
            raise UserError(what, hint="longer texts, or a smaller budget")
        by_text.append(drifts(model, before, after, list(named.values()), budget, every=every))
    if not by_text:
        raise UserError("there are no texts")
    columns = dict(zip(named, zip(*by_text, strict=True), strict=True))
    base = [one.kl for one in columns[reference]]
    return FidelityTable(tuple(_row(name, measured, base) for name, measured in columns.items()), reference)


def _named(
    policies: Sequence[str | Policy] | Mapping[str, Pruned], model: Any, tokenizer: Any, budget: CacheBudget
) -> dict[str, tuple[Policy, CacheBudget]]:
    if isinstance(policies, str | Policy):
        policies = [policies]
    if not isinstance(policies, Mapping):
        made = [plugins.load("policies", one, Path())() if isinstance(one, str) else one for one in policies]
        policies = {one.plugin_name(): one for one in made}
        if len(policies) < len(made):
            raise UserError("two policies have the same name", hint='name them: {"snapkv 64": Snapkv(64), …}')
    if not policies:
        raise UserError("there are no policies", hint="ponder list policies")
    if "oracle" in policies:
        what = "`oracle` needs the attention of a text's answer, which a plain text doesn't have"
        raise UserError(what, hint='a study measures it: `compress` with policy = "oracle" and fidelity = "only"')
    folder = Path(str(getattr(model, "name_or_path", "")))
    pairs = {name: one if isinstance(one, tuple) else (one, budget) for name, one in policies.items()}
    return {name: (fitted_to(policy, folder, tokenizer), budget) for name, (policy, budget) in pairs.items()}


def _tokens(tokenizer: Any, text: Text, prompt: int) -> tuple[list[int], list[int]]:
    if isinstance(text, str) or not isinstance(text[0], str):
        ids = list(tokenizer(text)["input_ids"] if isinstance(text, str) else text)
        return ids[:prompt], ids[prompt:]
    before, after = text
    return list(tokenizer(before)["input_ids"]), list(tokenizer(after, add_special_tokens=False)["input_ids"])


def _row(name: str, measured: Sequence[Drift], base: Sequence[float]) -> FidelityRow:
    kl, kl_se = _mean([one.kl for one in measured])
    agrees, agrees_se = _mean([one.agrees for one in measured])
    less, less_se = _mean([one.kl - other for one, other in zip(measured, base, strict=True)])
    bytes_, _ = _mean([one.bytes for one in measured])
    tokens = sum(one.tokens for one in measured)
    return FidelityRow(
        name, kl, kl_se, agrees, agrees_se, less, less_se, len(measured), tokens, bytes_, tuple(measured)
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
