"""Translates between a task and a pocket model, whose vocabulary of words is made for that task.

A `PocketCodec` renders a request as words, turns a reply back into the text that the task grades,
and generates the examples that a model is trained on. Each word is one token. It is declared with
its features (`b3?`: column b, row 3, open), and words that share a feature share that component of
their embedding in training. The vocabulary is also written as a Hugging Face tokenizer.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from ponder.core import Problem, Request, Task, seed_from

Style: TypeAlias = Literal["plain", "long", "short", "wordy"]

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
THINK = "<think>"
ANSWER = "</think>"
AGAIN = "<again>"  # starts another pass over the same steps


@dataclass(frozen=True)
class Example:
    """A training example in words: a prompt and a reply (thinking, `ANSWER`, answer, `EOS`)."""

    prompt: list[str]
    reply: list[str]
    # Indices in the reply without a loss: deliberate errors, questions of a drill.
    without_loss: frozenset[int] = frozenset()
    verdicts: frozenset[int] = frozenset()  # indices of the words that trust or doubt a pass


@dataclass(frozen=True)
class EvalSet:
    """Held-out problems of one kind, to measure a model on."""

    label: str
    task: Task
    size: int
    key: tuple[int, ...]  # its problems' seeds are hashed from this
    glance: int  # token budget of a quick check during training: the longest examples' length


class PocketCodec(ABC):
    """The vocabulary of one task, its prompts and replies, and the training examples."""

    task: ClassVar[str]
    styles: ClassVar[tuple[Style, ...]] = ("plain",)
    can: ClassVar[str]  # what the vocabulary covers, for hints
    taught: ClassVar[str]  # what the models are trained on, for the card
    exams: ClassVar[tuple[EvalSet, ...]]  # measured for the card
    glances: ClassVar[tuple[EvalSet, ...]]  # measured during training
    limits: ClassVar[tuple[str, ...]]  # known limits, for the card
    begins: ClassVar[str]  # regular expression of the words that start a step of the thinking

    def __init__(self, words: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self.words = [word for word, _ in words]
        self.parts = [features for _, features in words]
        self.index = {word: index for index, word in enumerate(self.words)}
        self._last: tuple[Any, dict[Style, list[str]]] = (None, {})

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.index[word] for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        return [self.words[token] for token in tokens]

    def held_out(self, problem: Problem) -> bool:
        """Return whether a problem is reserved for testing, and so never trained on."""
        return seed_from("pocket", problem.id) % 10 == 0

    def tests(self, exam: EvalSet, seed: int = 0) -> Iterator[Problem]:
        """Yield distinct held-out problems until no new ones turn up.

        There are only 240 Tents puzzles of 4×4.
        """
        seen_ids: set[str] = set()
        index = 0
        repeats = 0
        while repeats < 1000:
            problem = exam.task.problem(exam.size, seed_from("pocket test", *exam.key, seed, index))
            index += 1
            repeats += 1
            if self.held_out(problem) and problem.id not in seen_ids:
                seen_ids.add(problem.id)
                repeats = 0
                yield problem

    @abstractmethod
    def check(self, task: Task, size: int) -> None:
        """Raise `UserError` for a task or size that the vocabulary doesn't cover."""

    @abstractmethod
    def prompt(self, request: Request) -> list[str]:
        """Return the request as words, up to `THINK`.

        Raise `ModelFailure` if the vocabulary doesn't cover it.
        """

    @abstractmethod
    def text(self, request: Request, answer: Sequence[str]) -> str:
        """Return the answer's words as text that the task can grade."""

    def answer_words(self, request: Request, answer: str) -> list[str]:  # noqa: ARG002 for subclasses
        """Return the text of an answer as words again, for a reward that reads it.

        Text that isn't an answer is split at spaces.
        """
        return answer.split()

    @abstractmethod
    def draw(self, rng: random.Random, step: int, curriculum: Any) -> Request:
        """Return a random request to train on, at a step of the training."""

    def practise(
        self, rng: random.Random, step: int, curriculum: Any, style: Style
    ) -> Example | None:
        """Return a random example, at a step of the training.

        Return None if its problem is held out or has no example.
        """
        request = self.draw(rng, step, curriculum)
        if self.held_out(request.problem):
            return None
        return self.lesson(request, style, rng)

    @abstractmethod
    def lesson(
        self, request: Request, style: Style = "plain", rng: random.Random | None = None
    ) -> Example | None:
        """Return the request with a complete, right reply; None if the codec can't generate one."""

    def judged(self, request: Request, reply: Sequence[str], rng: random.Random) -> Example | None:  # noqa: ARG002
        """Return an example around a sampled reply, with the right verdicts on its passes.

        Return None if it has no passes to judge.
        """
        return None

    def unsound(
        self, request: Request, thinking: Sequence[str], style: Style = "plain"
    ) -> str | None:
        """Return the first word of the thinking that is wrong or doesn't follow; else None.

        By default, that is the first that differs from the example; `EOS` if all agree but one of
        them is longer.
        """
        right = self._right_thinking(request, style)
        if thinking == right:
            return None
        for word, right_word in zip(thinking, right, strict=False):
            if word != right_word:
                return word
        return EOS

    def _right_thinking(self, request: Request, style: Style) -> list[str]:
        """Return the thinking of the example.

        Those of the last request are kept, since steps are checked one after the other.
        """
        key = (request.problem.id, request.messages)
        if self._last[0] != key:
            self._last = (key, {})
        thinking_of = self._last[1]
        if style not in thinking_of:
            example = self.lesson(request, style)
            thinking_of[style] = example.reply[: example.reply.index(ANSWER)] if example else []
        return thinking_of[style]

    def steps(self, thinking: Iterable[str]) -> list[list[str]]:
        """Split thinking where a step starts."""
        steps: list[list[str]] = []
        for word in thinking:
            if not steps or re.fullmatch(self.begins, word):
                steps.append([])
            steps[-1].append(word)
        return steps

    def prompt_ids(self, request: Request) -> list[int]:
        return self.encode(self.prompt(request))

    def reply(self, request: Request, ids: Sequence[int]) -> tuple[str, str, int]:
        """Return thinking and answer as text, and the number of thinking tokens."""
        thinking, answer = self.read(request, ids)
        return " ".join(thinking), answer, len(thinking)

    def split(self, thinking: str) -> list[str]:
        return [" ".join(step) for step in self.steps(thinking.split())]

    def sound(self, request: Request, steps: Sequence[str], style: str = "") -> list[bool]:
        """Return which steps are right: in each pass, those before its first unsound word.

        Without a style, each pass counts in the style in which the most of its steps are right:
        trained and merged models mix them.
        """
        styles = [kind for kind in self.styles if style in ("", kind)]
        starts = [n for n, step in enumerate(steps) if n == 0 or step.startswith(AGAIN)]
        ends = [*starts[1:], len(steps)]
        verdicts: list[bool] = []
        for start, end in zip(starts, ends, strict=True):
            by_style = [self._sound_pass(request, steps[start:end], kind) for kind in styles]
            verdicts += max(by_style, key=sum)
        return verdicts

    def _sound_pass(self, request: Request, steps: Sequence[str], style: Style) -> list[bool]:
        """Return which steps of a pass are right."""
        verdicts: list[bool] = []
        words: list[str] = []
        right = True
        ended = False
        for step in steps:
            words += [word for word in step.split() if word != AGAIN]
            if right:
                fault = self.unsound(request, words, style)
                # `EOS`: right so far but unfinished, unless it was finished before: then the words
                # since are wrong.
                right = fault is None or (fault == EOS and not ended)
                ended = fault is None
            verdicts.append(right)
        return verdicts

    def read(self, request: Request, ids: Sequence[int]) -> tuple[list[str], str]:
        """Return the words of the thinking, and the answer as text, from a reply's token ids."""
        words = self.decode(ids)
        ended = words[-1:] == [EOS]
        if ended:
            words = words[:-1]
        thinking = words
        if ANSWER in words:
            thinking = words[: words.index(ANSWER)]
        answer = words[len(thinking) + 1 :]
        if ended and answer:
            return thinking, self.text(request, answer)
        return thinking, " ".join(answer)

    def write_tokenizer(self, folder: Path) -> None:
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
        }
        (folder / "tokenizer.json").write_text(
            json.dumps(self._tokenizer(), indent=1) + "\n", "utf-8"
        )
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")

    def _tokenizer(self) -> dict[str, Any]:
        """Return `tokenizer.json` as Hugging Face's `tokenizers` reads it."""
        special = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            # Special tokens are dropped when decoding with `skip_special_tokens`, and the thinking
            # must not be.
            "added_tokens": [
                {"id": self.index[word], "content": word, **special} for word in (PAD, BOS, EOS)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self.index, "unk_token": PAD},
        }
