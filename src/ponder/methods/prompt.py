"""Adds an instruction to the prompt, such as to be concise, and changes nothing else.

`style` is one of four published instructions, `text` one of your own (`text = "/no_think"`):

- `concise`: "Be concise." (Concise Chain-of-Thought, Renze & Guven 2024). Their prompt also asks to
  think step by step, which is left to the task.
- `draft`: step by step, with at most five words a step (Chain of Draft, Xu et al. 2025). Their
  separator before the answer is left out, because the task says how to write the answer.
- `words`: step by step, in at most `n` words (Constrained Chain-of-Thought, Nayab et al. 2024).
- `direct`: the answer without any reasoning (the baseline of Xu et al. 2025). It closes no thinking
  block. NoThinking (Ma et al. 2025) does, before the reply begins; for this the model `endpoint`
  has `thinking = false`, the server's own switch.

The instruction is the last paragraph of the user's message, in every turn; earlier turns are shown
without it. It is no system message, as in two of the papers: some chat templates refuse one, and in
others (Qwen2.5, SmolLM2) it replaces the template's own, so that more would change than the
instruction. Its tokens are billed with the prompt. Models that answer from the problem itself, such
as `pocket` and `oracle`, can't be prompted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ponder.core import (
    ChecksPrompts,
    Completion,
    IgnoresMessages,
    Message,
    Method,
    Model,
    Request,
    Spend,
    Task,
    TurnLimit,
    UserError,
    Wrapped,
)
from ponder.core.capabilities import BudgetsThinking
from ponder.core.wrapped import codec_name

# Quoted from the papers and, of `concise`, from the code published with it.
INSTRUCTIONS = {
    "concise": "Be concise.",
    "draft": "Think step by step, but only keep a minimum draft for each thinking step, "
    "with 5 words at most.",
    "words": "Let's think a bit step by step and limit the answer length to {n} words.",
    "direct": "Answer the question directly. "
    "Do not return any preamble, explanation, or reasoning.",
}


@dataclass(frozen=True)
class Prompt(Method, ChecksPrompts):
    style: Literal["", "concise", "draft", "words", "direct"] = ""  # a published instruction
    text: str = ""  # an instruction of your own, instead of a style
    n: int | None = None  # words, of the style `words`

    example: ClassVar[dict[str, Any]] = {"style": "concise"}

    def __post_init__(self) -> None:
        if bool(self.style) == bool(self.text.strip()):
            raise UserError("prompt takes either a style or a text", hint='style = "concise"')
        if self.style == "words" and (self.n is None or self.n < 1):
            raise UserError('the style "words" takes a number of words', hint="n = 45")
        if self.style != "words" and self.n is not None:
            raise UserError(
                'n is the number of words of the style "words"',
                hint='style = "words", or leave out n',
            )

    @property
    def instruction(self) -> str:
        """What is added to the prompt."""
        if self.style:
            return INSTRUCTIONS[self.style].format(n=self.n)
        return self.text.strip()

    @property
    def addition(self) -> str:
        """The instruction as a further paragraph of a message."""
        return f"\n\n{self.instruction}"

    def identity(self) -> dict[str, Any]:
        # What was sent counts: stored attempts would be wrong if the text of a style changed.
        return {"name": self.plugin_name(), "text": self.instruction}

    def title(self) -> str:
        return self.style or self.plugin_name()

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        # Like `token_limit`: at most one token per byte.
        tokens = len(self.addition.encode("utf-8", "replace"))

        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            return inner(prompt_tokens + tokens, budget)

        return limit

    def check(self, model: Model, task: Task) -> None:
        if isinstance(model, IgnoresMessages) or codec_name(model, task):
            raise UserError(
                f"a model of the kind `{model.plugin_name()}` answers from the problem itself, "
                "so it can't be prompted",
                hint='the method `prompt` is for a chat model: name = "endpoint", or '
                '"transformers" with an id',
            )

    def check_prompt(self, model: Model, request: Request) -> None:
        # `check` is called for the first method of a chain only.
        self.check(model, request.task)

    def added_to(self, request: Request) -> Request:
        """Return the request with the instruction after the question of its turn.

        That is not the last message where a method continues the turn, as `budget_force` does.
        """
        messages = list(request.messages)
        users = [i for i, message in enumerate(messages) if message.role == "user"]
        position = users[-1]
        question = request.problem.turns[request.turn]
        for i in reversed(users):
            if messages[i].content.startswith(question):
                position = i
                break
        messages[position] = Message("user", messages[position].content + self.addition)
        return replace(request, messages=tuple(messages))

    def apply(self, model: Model) -> Model:
        return _Prompted(model, self)


class _Prompted(Wrapped, BudgetsThinking):
    def __init__(self, inner: Model, method: Prompt) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        return await self.inner.complete(self._method.added_to(request))

    def with_think(self, tokens: int) -> Model | None:
        # So that a later `budget_force` uses the server's own budget, as without a prompt.
        if not isinstance(self.inner, BudgetsThinking):
            return None
        limited = self.inner.with_think(tokens)
        if limited is None:
            return None
        return _Prompted(limited, self._method)


def prompted(methods: Sequence[Method], request: Request) -> Request:
    """Return the first request of a turn as a chain of methods sends it."""
    for method in reversed(methods):
        if isinstance(method, Prompt):
            request = method.added_to(request)
    return request
