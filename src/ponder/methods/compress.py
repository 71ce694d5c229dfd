"""Limits the KV cache to a budget of tokens; an eviction policy decides which tokens are kept.

When the cache reaches `budget` tokens, the last `window` tokens are kept, and of the others the
`ratio` with the highest scores, as in DynTS (arXiv 2601.18383). Without a ratio, the cache is
pruned to the budget at every step. Unlike the paper's baselines, every policy has the same
protection: the first tokens, the question and the answer are never evicted; and the ratio counts
only tokens that may be evicted, so that a long question doesn't use it up. `ponder list policies`
lists them.

`fidelity` measures how far a policy's predictions drift from those of the full cache, on the full
cache's own text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    CacheBudget,
    ChecksPrompts,
    Measuring,
    Method,
    Model,
    Policy,
    Prepared,
    Progress,
    Prunable,
    Request,
    Task,
    Trainable,
    TrainedPerStudy,
    TrainingProblems,
    UserError,
    WithWeights,
    digest,
    not_in_key,
    plugins,
    renamed,
    require,
)
from ponder.core.settings import build
from ponder.models import models_folder


@dataclass(frozen=True)
class Compress(Method, Prepared, ChecksPrompts, Measuring):
    policy: str  # `ponder list policies`, or a file of your own: `ponder new policy NAME`
    budget: int  # tokens; a cache that reaches it is pruned
    window: int  # the most recent tokens, never evicted
    # fraction of the evictable tokens that is kept; left out: prune to the budget each step
    ratio: float | None = None
    sinks: int = 4  # the first tokens, never evicted
    question: bool = True  # never evict the prompt
    answer: bool = True  # never evict what follows the end of thinking
    # which heads share one decision
    granularity: Literal["model", "layer", "head"] = renamed("share", "model")
    # measure drift on the full cache's text: no, besides a reply from the pruned cache, or instead
    fidelity: Literal["no", "also", "only"] = "no"
    # what `ratio` is a fraction of: the tokens that may be evicted, or all, as published for DynTS
    ratio_of: Literal["evictable", "all"] = "evictable"
    # tokens per layer and head: equal, fewer in later layers, or by score within a layer
    allocation: Literal["even", "pyramid", "adakv"] = "even"
    # of the policy, such as { queries = 64 }: `ponder show snapkv`
    settings: dict[str, Any] = field(default_factory=dict)

    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    example: ClassVar[dict[str, Any]] = {
        "policy": "random",
        "budget": 64,
        "window": 16,
        "ratio": 0.5,
    }
    tried_on = ({"name": "transformers", "id": "pocket"}, {"name": "tents"}, 16)

    def __post_init__(self) -> None:
        if not plugins.is_file(self.policy, Path()) and self.policy not in plugins.names(
            "policies"
        ):
            raise plugins.unknown("policies", self.policy)
        if self.policy == "oracle" and self.fidelity != "only":
            message = (
                "the policy `oracle` needs the whole text in advance, so it can't generate one"
            )
            raise UserError(message, hint='fidelity = "only" measures it on the full cache\'s text')
        self._cache_budget()
        if self.settings:
            self._policy()

    def _cache_budget(self) -> CacheBudget:
        return CacheBudget(
            self.budget,
            self.window,
            self.ratio,
            self.sinks,
            self.question,
            self.answer,
            self.granularity,
            self.ratio_of,
            self.allocation,
        )

    def title(self) -> str:
        return self.policy

    def ready(self) -> None:
        plugins.need("torch", f"method `{self.plugin_name()}`")

    def check(self, model: Model, task: Task) -> None:  # noqa: ARG002 the interface's
        require(model, Prunable)

    def check_prompt(self, model: Model, request: Request) -> None:
        if self.policy != "full" and isinstance(model, Prunable):
            tokens = model.prompt_tokens(request)
            if tokens is not None:
                self._cache_budget().check_prompt(tokens)

    def measures(self) -> tuple[str, ...]:
        return ("kl", "agrees") if self.fidelity != "no" else ()

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        training_digest = self._training_digest()
        if training_digest:
            identity["on"] = training_digest
        return identity

    def _training_digest(self) -> str:
        """Return a digest of the problems that the policy is trained on.

        It is "" for a policy that isn't trained, and for one that ships with the weights.
        """
        in_key = [problems.identity() for problems in self.train_on if problems.in_key]
        if in_key and issubclass(plugins.load("policies", self.policy, Path()), TrainedPerStudy):
            return digest(in_key).hex()[:20]
        return ""

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def missing_outputs(self, model: Model) -> tuple[Path, ...]:
        policy = self._policy()
        if not isinstance(policy, Trainable):
            return ()
        weights = require(model, WithWeights)
        folders = {weights.source(problems.task).folder for problems in self.train_on}
        return tuple(policy.fitted_path(folder) for folder in folders if policy.needs_fit(folder))

    def make(self, model: Model) -> Iterator[Progress]:
        yield from require(model, Prunable).fit_policy(self._policy(), self.train_on)

    def apply(self, model: Model) -> Model:
        budget = None if self.policy == "full" else self._cache_budget()
        return require(model, Prunable).with_policy(self._policy(), budget, self.fidelity)

    def _policy(self) -> Policy:
        policy: Policy = build(
            "policies", {"name": self.policy, **self.settings}, "settings", Path()
        )
        if isinstance(policy, TrainedPerStudy):
            return policy.with_training(self._training_digest(), models_folder())
        return policy
