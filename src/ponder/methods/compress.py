"""A KV cache that forgets: hold it at a budget by evicting what a policy says matters least.

When the cache reaches `budget` tokens, the last `window` stay, and of the others the best `ratio` by the policy's
score, as in DynTS (arXiv 2601.18383); without a ratio it is cut back to the budget at every step. Unlike the paper's
baselines, every policy has the same protection: sinks, question and answer stay whatever it says; and the ratio is of
the tokens that may leave, so that a long question doesn't use it up. `ponder list caches` names the policies.

`fidelity` also lets the full cache answer, reads its text again under the policy, and measures how far the predictions
drift; with `only`, that text is the attempt's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    CacheBudget,
    Method,
    Model,
    Policy,
    Progress,
    TrainingProblems,
    UserError,
    not_in_key,
    plugins,
    renamed,
)


@dataclass(frozen=True)
class Compress(Method):
    policy: str  # `ponder list caches`, or a file of your own: `ponder new cache NAME`
    budget: int  # tokens; a cache that reaches it is cut
    window: int  # the last so many always stay
    ratio: float | None = None  # share of what may leave that stays; left out: cut to the budget at every step
    sinks: int = 4  # the first so many always stay
    question: bool = True  # so does the prompt
    answer: bool = True  # and what comes after the end of thinking
    granularity: Literal["model", "layer", "head"] = renamed("share", "model")  # which heads share one decision
    fidelity: Literal["no", "also", "only"] = "no"  # measure the drift from the full cache, beside writing or instead

    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    example: ClassVar[dict[str, Any]] = {"policy": "random", "budget": 64, "window": 16, "ratio": 0.5}
    tried_on = ({"name": "transformers", "id": "pocket"}, {"name": "tents"}, 16)

    def __post_init__(self) -> None:
        if not self.policy.endswith(".py") and self.policy not in plugins.names("caches"):
            raise plugins.unknown("caches", self.policy)
        if self.policy == "oracle" and self.fidelity != "only":
            what = "the oracle must know a text beforehand, so it can't write one"
            raise UserError(what, hint='fidelity = "only" measures it on the full cache\'s text')
        self._keep()

    def _keep(self) -> CacheBudget:
        return CacheBudget(
            self.budget, self.window, self.ratio, self.sinks, self.question, self.answer, self.granularity
        )

    def title(self) -> str:
        return self.policy

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def make(self, model: Model) -> Iterator[Progress]:
        yield from model.fit_policy(self._policy(), self.train_on)

    def apply(self, model: Model) -> Model:
        return model.with_policy(self._policy(), None if self.policy == "full" else self._keep(), self.fidelity)

    def _policy(self) -> Policy:
        policy: Policy = plugins.load("caches", self.policy)()
        return policy
