"""How far a pruned cache's predictions drift from the full cache's, on given texts.

    from ponder.kvcache import CacheBudget, fidelity

    budget = CacheBudget(budget=512, window=64, ratio=0.5)
    print(fidelity(model, tokenizer, texts, ["random", "snapkv", "keydiff"], budget))

Between two prunings the cache only grows, so all tokens up to the next pruning go through the model
in one pass, with the same results as one at a time: measuring a policy costs about as much as
reading the text. All policies read the text side by side, so that the full cache reads it once, and
only the log-probabilities of the current pass are in memory.
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
# A text, a prompt and its continuation, or token ids.
Text: TypeAlias = str | tuple[str, str] | Sequence[int]
# A policy, with a budget if it has its own.
Pruned: TypeAlias = Policy | tuple[Policy, CacheBudget]


@dataclass(frozen=True)
class Drift:
    """The drift on one text."""

    # KL divergence of the pruned cache's next-token distribution from the full cache's, in nats
    # per token.
    kl: float
    agrees: float  # fraction of tokens after which both predict the same most likely token
    tokens: int  # that were compared
    bytes: float = 0.0  # of the tokens in the pruned cache, averaged over the text
    # Bytes of the pruned cache's columns at their peak; more if heads keep different numbers.
    peak: float = 0.0


def drift(
    model: Any, prompt: list[int], reply: list[int], policy: Policy, budget: CacheBudget
) -> Drift:
    """Compare the full cache with one pruned by a policy, over the tokens of a reply."""
    return drifts(model, prompt, reply, [policy], budget)[0]


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
    """Compare the full cache with several pruned ones, after every n-th token of a reply."""
    ids = torch.tensor([prompt + reply], device=model.device)
    full_cache = SelectCache(model, plugins.load("policies", "full", Path())(), None)
    readers = []
    for policy, policy_budget in _with_budgets(policies, budget):
        readers.append(_Reader(SelectCache(model, policy, policy_budget, prompt=len(prompt))))

    first_compared = len(prompt) - 1  # the prompt's last token predicts the reply's first
    last = ids.shape[1] - 1  # the reply's last token predicts nothing that could be compared
    position = 0
    while position < last:
        if position < len(prompt):
            end = len(prompt)
            offset = first_compared - position
        else:
            # Up to the first pruning of any reader: it depends on the budget, not on the policy.
            new = min(tokens_until_pruning(reader.cache) for reader in readers)
            end = min(position + new, last)
            offset = (first_compared - position) % every
        chunk = ids[:, position:end]
        compared = range(offset, end - position, every)
        expected = _log_probs(model, chunk, full_cache, compared)
        probabilities = expected.exp()
        most_likely = expected.argmax(-1)
        for reader in readers:
            cached = reader.cache.tokens + chunk.shape[1]
            log_probs = _log_probs(model, chunk, reader.cache, compared)
            reader.kl += float((probabilities * (expected - log_probs)).sum())
            reader.agreed += int((most_likely == log_probs.argmax(-1)).sum())
            reader.compared += len(compared)
            counted = end - max(position, first_compared)
            reader.cached_tokens += range(cached - counted + 1, cached + 1)
        position = end
    return [reader.drift() for reader in readers]


def _with_budgets(
    policies: Iterable[Pruned], budget: CacheBudget
) -> list[tuple[Policy, CacheBudget]]:
    """Give the common budget to each policy that has none."""
    pairs = []
    for policy in policies:
        if isinstance(policy, tuple):
            pairs.append(policy)
        else:
            pairs.append((policy, budget))
    return pairs


class _Reader:
    """A pruned cache that reads a text, and the sums of its differences from the full cache."""

    def __init__(self, cache: SelectCache) -> None:
        self.cache = cache
        self.kl = 0.0
        self.agreed = 0
        self.compared = 0
        # Tokens per head after each token, before pruning; the prompt counts as one token.
        self.cached_tokens: list[int] = []

    def drift(self) -> Drift:
        """Return the means over the tokens that were read."""
        token_bytes = self.cache.token_bytes
        compared = max(1, self.compared)
        mean_tokens = sum(self.cached_tokens) / max(1, len(self.cached_tokens))
        peak_columns = max(self.cache.peaks, default=0)
        return Drift(
            kl=self.kl / compared,
            agrees=self.agreed / compared,
            tokens=self.compared,
            bytes=token_bytes * mean_tokens,
            peak=float(token_bytes * peak_columns),
        )


def _log_probs(model: Any, ids: Tensor, cache: SelectCache, compared: range) -> Tensor:
    """Return next-token log-probabilities after the compared tokens, (compared, vocabulary).

    The other tokens don't go through the output layer.
    """
    tokens = ids.shape[1]
    keep: int | Tensor
    if compared.step == 1 and compared.stop == tokens:
        keep = tokens - compared.start
    else:
        keep = torch.tensor(compared, dtype=torch.long, device=ids.device)
    logits: Tensor = model(ids, past_key_values=cache, logits_to_keep=keep).logits[0]
    return logits.float().log_softmax(-1)


def tokens_until_pruning(cache: SelectCache) -> int:
    """Return how many tokens a forward pass may add, of which only the last may cause a pruning."""
    if cache.budget is None:
        return CHUNK
    pruned_at = cache.budget.budget
    if cache.budget.ratio is None:
        pruned_at += 1
    return min(CHUNK, max(1, pruned_at - cache.tokens))


@dataclass(frozen=True)
class FidelityRow:
    """A policy's drift, averaged over texts that weigh equally.

    `…_se` are standard errors over texts; NaN with a single text.
    """

    policy: str
    kl: float  # nats per token
    kl_se: float
    agrees: float  # fraction of tokens with the same most likely token
    agrees_se: float
    less: float  # this policy's KL minus the reference's, text by text
    less_se: float
    texts: int
    tokens: int
    bytes: float  # of the pruned cache
    by_text: tuple[Drift, ...] = ()  # to compare with other measurements on these texts


@dataclass(frozen=True)
class FidelityTable:
    """Prints as a table; `pandas.DataFrame(table.rows)` makes a frame of it."""

    rows: tuple[FidelityRow, ...]
    reference: str

    def __str__(self) -> str:
        width = len("policy")
        for row in self.rows:
            width = max(width, len(row.policy))
        lines = [
            f"{'policy':{width}}  KL, nats per token  same top token  KL less {self.reference}'s"
        ]
        for row in self.rows:
            kl = _with_error(row.kl, row.kl_se, ".4f")
            agrees = _with_error(row.agrees, row.agrees_se, ".1%")
            difference = ""
            if row.policy != self.reference:
                difference = _with_error(row.less, row.less_se, "+.4f")
            lines.append(f"{row.policy:{width}}  {kl:>18}  {agrees:>14}  {difference}".rstrip())
        texts = self.rows[0].texts
        note = "± one standard error over texts"
        if texts == 1:
            note = "several would tell how sure this is"
        lines.append(f"{count(texts, 'text')}, {self.rows[0].tokens:,} tokens; {note}")
        return "\n".join(lines)


def _with_error(value: float, error: float, form: str) -> str:
    if math.isnan(error):
        return f"{value:{form}}"
    return f"{value:{form}} ± {error:{form.removeprefix('+')}}"


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
    """Measure how close each policy's predictions stay to the full cache's, on the same texts.

    A text may be a prompt and its continuation; of a plain text, the first `prompt` tokens are the
    prompt. To compare budgets, give some policies their own: `{"small": (Snapkv(), CacheBudget(256,
    64, 0.5)), …}`. Predictions are compared after every token, or only after every n-th (`every`),
    which takes less time if the vocabulary is large. The differences are to `reference`, by default
    `random` if it is measured, else the first policy.
    """
    if isinstance(texts, str):
        raise UserError("`texts` is one text, not a list of them", hint="[text], or its parts")
    if every < 1:
        raise UserError(f"every is a number of tokens, at least 1, not {every}")
    by_name = _policies_by_name(policies, model, tokenizer, budget)
    names = list(by_name)
    if not reference:
        reference = "random" if "random" in names else names[0]
    if reference not in names:
        raise UserError(
            f"the reference `{reference}` isn't measured", hint=f"one of {', '.join(names)}"
        )

    smallest_budget = min(policy_budget.budget for _, policy_budget in by_name.values())
    by_policy: dict[str, list[Drift]] = {name: [] for name in names}
    for number, text in enumerate(texts):
        prompt_ids, reply_ids = _tokens(tokenizer, text, prompt)
        tokens = len(prompt_ids) + len(reply_ids)
        if tokens <= smallest_budget:
            raise UserError(
                f"text {number} has {tokens} tokens, so that a budget of {smallest_budget}"
                " evicts nothing",
                hint="longer texts, or a smaller budget",
            )
        measured = drifts(model, prompt_ids, reply_ids, list(by_name.values()), budget, every=every)
        for name, text_drift in zip(names, measured, strict=True):
            by_policy[name].append(text_drift)
    if not by_policy[reference]:
        raise UserError("there are no texts")
    rows = tuple(_row(name, by_text, by_policy[reference]) for name, by_text in by_policy.items())
    return FidelityTable(rows, reference)


def _policies_by_name(
    policies: Sequence[str | Policy] | Mapping[str, Pruned],
    model: Any,
    tokenizer: Any,
    budget: CacheBudget,
) -> dict[str, tuple[Policy, CacheBudget]]:
    """Return each policy, fitted to the model, with its budget."""
    if isinstance(policies, str | Policy):
        policies = [policies]
    if not isinstance(policies, Mapping):
        policies = _named(policies)
    if not policies:
        raise UserError("there are no policies", hint="ponder list policies")
    if "oracle" in policies:
        raise UserError(
            "`oracle` needs the attention of a text's answer, which a plain text doesn't have",
            hint='a study measures it: `compress` with policy = "oracle" and fidelity = "only"',
        )
    folder = Path(str(getattr(model, "name_or_path", "")))
    pairs = _with_budgets(policies.values(), budget)
    by_name = {}
    for name, (policy, policy_budget) in zip(policies, pairs, strict=True):
        by_name[name] = (fitted_to(policy, folder, tokenizer), policy_budget)
    return by_name


def _named(policies: Sequence[str | Policy]) -> dict[str, Pruned]:
    """Return policies by the names of their plugins; a name stands for its default settings."""
    loaded: list[Policy] = []
    for policy in policies:
        if isinstance(policy, str):
            loaded.append(plugins.load("policies", policy, Path())())
        else:
            loaded.append(policy)
    by_name: dict[str, Pruned] = {policy.plugin_name(): policy for policy in loaded}
    if len(by_name) < len(loaded):
        raise UserError(
            "two policies have the same name", hint='name them: {"snapkv 64": Snapkv(64), …}'
        )
    return by_name


def _tokens(tokenizer: Any, text: Text, prompt: int) -> tuple[list[int], list[int]]:
    """Return the token ids of a text's prompt and of its continuation."""
    if isinstance(text, str):
        ids = list(tokenizer(text)["input_ids"])
    elif isinstance(text[0], str):
        before, after = text
        prompt_ids = list(tokenizer(before)["input_ids"])
        reply_ids = list(tokenizer(after, add_special_tokens=False)["input_ids"])
        return prompt_ids, reply_ids
    else:
        ids = list(text)
    return ids[:prompt], ids[prompt:]


def _row(name: str, by_text: Sequence[Drift], reference: Sequence[Drift]) -> FidelityRow:
    kl, kl_se = _mean([text.kl for text in by_text])
    agrees, agrees_se = _mean([text.agrees for text in by_text])
    less, less_se = _mean(
        [text.kl - base.kl for text, base in zip(by_text, reference, strict=True)]
    )
    mean_bytes, _ = _mean([text.bytes for text in by_text])
    return FidelityRow(
        policy=name,
        kl=kl,
        kl_se=kl_se,
        agrees=agrees,
        agrees_se=agrees_se,
        less=less,
        less_se=less_se,
        texts=len(by_text),
        tokens=sum(text.tokens for text in by_text),
        bytes=mean_bytes,
        by_text=tuple(by_text),
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)
