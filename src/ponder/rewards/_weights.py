"""What rewards with local weights share: traces become tokens, in windows that fit the model,
scored in batches.

Padding is on the right of a causal model, so no score depends on it. Only the positions where a
score is read go through the head: logits over the vocabulary are never computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ponder.core import (
    Bill,
    InMemory,
    RatesEach,
    Reward,
    Scores,
    Steps,
    UserError,
    fingerprint,
    not_in_key,
    plugins,
)
from ponder.models._gpu_memory import stop_servers
from ponder.models._local_weights import FIRST, no_bars
from ponder.rewards._windows import batches, spans

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "heads.safetensors"
GAP = "\n\n"
WINDOW = 4096  # tokens, for a model whose config gives no maximum


@dataclass(frozen=True)
class Reading:
    """A trace as tokens: a head, the steps with `join` between them, and a tail."""

    head: list[int]  # with the question
    steps: list[list[int]]
    join: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    back: int = 1  # a step's score is read at this token from its end; 1: the last
    # the steps as tokenized right after the head, if different
    first: list[list[int]] = field(default_factory=list)


class Row(NamedTuple):
    """One sequence for the model, and the positions where scores are read."""

    tokens: list[int]
    positions: list[int]


@dataclass
class _Rating:
    """A trace while its rows are scored."""

    steps: list[Row]
    whole: list[Row] | None  # for the trajectory, if that needs rows of its own
    scores: dict[int, list[list[float]]] = field(default_factory=dict)  # of the rows that are done

    @property
    def rows(self) -> list[Row]:
        return [*self.steps, *(self.whole or ())]

    def result(self, no_room: str) -> Scores:
        """The scores, once all rows are done."""
        bill = Bill(prompt_tokens=sum(len(row.tokens) for row in self.rows), counted_by="tokenizer")
        if not self.steps or self.whole == []:
            return Scores(why=no_room, bill=bill)
        steps = [step[0] for k in range(len(self.steps)) for step in self.scores[k]]
        last = self.scores[len(self.rows) - 1][-1]
        return Scores(tuple(steps), last[-1] if self.whole or len(last) > 1 else None, bill=bill)


@dataclass(frozen=True)
class SafeTokenizer:
    """A tokenizer that never turns the text of a trace into a special token or a marker."""

    base: Any  # of transformers
    marker: str = ""  # a token that isn't special, but that a trace must not contain either

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, none of them special."""
        coded: list[list[int]] = self._encode(texts)["input_ids"]
        for n, text in enumerate(texts):
            if self.marker and self.marker in text:  # split in two, it becomes ordinary text
                parts = text.replace(self.marker, f"{self.marker[0]}\0{self.marker[1:]}").split(
                    "\0"
                )
                coded[n] = [token for part in self._encode(parts)["input_ids"] for token in part]
        return coded

    def control(self, text: str) -> list[int]:
        """The tokens of a text that may contain special tokens."""
        return list(self.base(text, add_special_tokens=False)["input_ids"])

    def token(self, text: str) -> int:
        """The single token of a marker."""
        return self.control(text)[-1]

    def parts(self, texts: Sequence[str], ends: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        """The tokens of each text, divided at character offsets; a part ends with the token of its
        last character.
        """
        coded = self._encode(texts, return_offsets_mapping=True)
        divided = []
        for tokens, offsets, text_ends in zip(
            coded["input_ids"], coded["offset_mapping"], ends, strict=True
        ):
            parts, n = list[list[int]](), 0
            for end in text_ends:
                start = n
                while n < len(tokens) and offsets[n][0] < end:
                    n += 1
                parts.append(tokens[start:n])
            divided.append(parts)
        return divided

    def _encode(self, texts: Sequence[str], **more: Any) -> Any:
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return self.base(list(texts), **options, **more) if texts else {"input_ids": []}

    def around(self, *messages: tuple[str, str]) -> list[str]:
        """The chat template's text before, between and after the messages, each a role and its
        content; "" is a gap.
        """
        if not self.base.chat_template:
            what = "the reward's tokenizer has no chat template"
            raise UserError(what, hint="download the complete model, with its tokenizer files")
        gaps = [f"<said {n}>" for n in range(len(messages))]
        turns = [
            {"role": role, "content": content or gaps[n]}
            for n, (role, content) in enumerate(messages)
        ]
        text = str(
            self.base.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        )
        parts = []
        for gap in (gap for gap, (_, content) in zip(gaps, messages, strict=True) if not content):
            before, _, text = text.partition(gap)
            parts.append(before)
        return [*parts, text]


@dataclass(frozen=True, kw_only=True)
class Weighted(Reward, RatesEach, InMemory):
    """A reward with weights on this machine.

    As it stands they are a causal language model with two heads, as `training.reward` trains them:
    one scores each step at its last token, the other the trajectory at the last token of all. An
    adapter for other weights overrides `network` and `read`.
    """

    id: str  # a folder in the Hugging Face format, or `org/name` on the hub
    revision: str = ""  # of a model on the hub
    window: int | None = None  # tokens per sequence; if not given, the model's maximum
    # fraction of the window that repeats earlier steps, if a trace is longer than it
    context: float = 0.25
    # of the weights and of the arithmetic
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = not_in_key("cpu")  # or cuda, mps
    threads: int = not_in_key(1)  # on a CPU
    # tokens per batch, padding included; if not given, 2048 on a CPU, else 16384
    batch: int | None = not_in_key(None)

    example: ClassVar[dict[str, Any]] = {"id": "folder-of-weights"}
    marker: ClassVar[str] = ""  # a token that must not be read out of a trace

    @classmethod
    def plugin_name(cls) -> str:
        return "trained" if cls is Weighted else super().plugin_name()

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 0.9:
            raise UserError(
                f"context is a fraction of the window, from 0 to 0.9, not {self.context}"
            )
        if (self.batch is not None and self.batch < 1) or (
            self.window is not None and self.window < 8
        ):
            raise UserError("batch must be at least 1 token, and window at least 8")

    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 for subclasses
        """Return the model that turns tokens into hidden states, and the head that turns those into
        scores from 0 to 1.

        A head may return two columns: the step's score, and the trajectory's score if it ended
        there.
        """
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        if not (path := Path(self.id) / HEADS).is_file():
            what = f"{self.id} isn't a trained reward: it has no {HEADS}"
            raise UserError(
                what, hint="ponder prepare reward TRACES --from MODEL -o DIR trains one"
            )
        saved = load_file(path)
        heads = torch.nn.Linear(saved["weight"].shape[1], 2).to(self.device)
        heads.load_state_dict(saved)
        return self.states(self.load(AutoModelForCausalLM)), lambda hidden: heads(
            hidden.float()
        ).sigmoid()

    def states(self, model: Any) -> Any:
        """The part of a causal language model whose hidden states the heads read."""
        return model.base_model

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> Sequence[Reading | str]:
        """Return each trace as tokens, or why it can't be scored: here as plain text with blank
        lines between steps.
        """
        begin = tokenizer.base.bos_token_id
        start, gap = [] if begin is None else [begin], tokenizer.control(GAP)
        split = [(t.question, *t.part(self.of)) for t in traces]
        texts = iter(tokenizer.plain([text for trace in split for text in trace]))
        return [
            Reading([*start, *next(texts), *gap], [next(texts) for _ in steps], gap)
            for _, *steps in split
        ]

    def whole(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> Sequence[Reading]:  # noqa: ARG002 for subclasses
        """Each trace as tokens for the trajectory's score, if that needs another sequence; the last
        score counts.
        """
        return ()

    def identity(self) -> dict[str, Any]:
        # Local weights are identified by their content, not by their path.
        kinds = (
            (".safetensors", ".pt")
            if list(Path(self.id).glob("*.safetensors"))
            else (".bin", ".pt")
        )
        files = sorted(f for f in Path(self.id).glob("*") if f.suffix in kinds)
        return {**super().identity(), "id": [fingerprint(file) for file in files] or self.id}

    def title(self) -> str:
        return self.id.rstrip("/").rsplit("/", 1)[-1]

    def parameters(self) -> int:
        return sum(p.numel() for p in self.loaded[0].parameters())

    def release(self) -> None:
        vars(self).pop("loaded", None)

    def ready(self) -> None:
        plugins.need("torch", f"reward `{self.plugin_name()}`")
        self.check_id()

    def check_id(self) -> None:
        """Raise `UserError` for what is neither a folder nor a name on the hub, which would be
        asked for 40 s.
        """
        is_path = self.id.startswith((".", "/", "~")) or self.id.count("/") != 1
        if is_path and not os.path.isdir(self.id):  # noqa: PTH112 `org/name` isn't a path
            hint = f"a folder with weights, or org/name on the hub; {FIRST}"
            raise UserError(f"there is no folder {self.id}", hint=hint)

    @cached_property
    def loaded(self) -> tuple[Any, Callable[[Tensor], Tensor], SafeTokenizer]:
        import torch
        from transformers import AutoTokenizer

        self.check_id()
        torch.set_num_threads(self.threads)
        stop_servers(self.device)
        no_bars()
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                self.id, trust_remote_code=False, **self._from
            )
            safe = SafeTokenizer(tokenizer, self.marker)
            states, head = self.network(safe)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise UserError(f"can't load {self.id}: {str(error).strip().splitlines()[0]}") from None
        return states.eval(), head, safe

    @property
    def _from(self) -> dict[str, Any]:
        return {"revision": self.revision} if self.revision else {}

    def load(self, kind: Any) -> Any:
        """Load a transformers class; raises `UserError` if weights are missing."""
        import torch

        model, info = kind.from_pretrained(
            self.id,
            dtype=getattr(torch, self.dtype),
            output_loading_info=True,
            trust_remote_code=False,
            **self._from,
        )
        if info["missing_keys"]:
            what = f"{self.id} lacks the weights {', '.join(sorted(info['missing_keys'])[:3])}"
            raise UserError(
                what,
                hint=f"it isn't a model for the reward `{self.plugin_name()}`: ponder list rewards",
            )
        return model.to(self.device)

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        rated = dict(self.rate_each(traces))
        return [rated[n] for n in range(len(traces))]

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        states, head, tokenizer = self.loaded
        window = self.window or getattr(states.config, "max_position_embeddings", None) or WINDOW
        readings, wholes = self.read(tokenizer, traces), self.whole(tokenizer, traces)
        ratings = [
            _Rating(self._rows(reading, window), self._rows(wholes[n], window) if wholes else None)
            for n, reading in enumerate(readings)
        ]
        why = f"its question leaves no room in a window of {window} tokens"
        for n, (reading, rating) in enumerate(zip(readings, ratings, strict=True)):
            if not rating.rows:
                yield n, Scores(why=reading if isinstance(reading, str) else why)
        rows = [
            (n, k, row) for n, rating in enumerate(ratings) for k, row in enumerate(rating.rows)
        ]
        for r, row_scores in self._run(states, head, [row for *_, row in rows]):
            n, k, _ = rows[r]
            ratings[n].scores[k] = row_scores
            if len(ratings[n].scores) == len(ratings[n].rows):
                yield n, ratings[n].result(why)

    def _rows(self, reading: Reading | str, window: int) -> list[Row]:
        return [] if isinstance(reading, str) else list(windows(reading, window, self.context))

    def _run(
        self, states: Any, head: Callable[[Tensor], Tensor], rows: Sequence[Row]
    ) -> Iterator[tuple[int, list[list[float]]]]:
        """The one or two scores at each position of each row, batch by batch."""
        import torch

        size = self.batch or (2048 if self.device == "cpu" else 16384)
        for batch in batches([len(row.tokens) for row in rows], size):
            with torch.inference_mode():
                scores = head(read_states(states, [rows[r] for r in batch], self.device)).float()
            each = iter(scores.view(len(scores), -1).tolist())
            for r in batch:
                yield r, [next(each) for _ in rows[r].positions]


def read_states(states: Any, rows: Sequence[Row], device: Any) -> Tensor:
    """The hidden states at the positions of all rows, one row after the other."""
    import torch

    tokens = torch.zeros(len(rows), max(len(row.tokens) for row in rows), dtype=torch.long)
    for n, row in enumerate(rows):
        tokens[n, : len(row.tokens)] = torch.tensor(row.tokens)
    at = [(n, position) for n, row in enumerate(rows) for position in row.positions]
    row_of, position = torch.tensor(at, device=device).T
    hidden: Tensor = states(input_ids=tokens.to(device), use_cache=False).last_hidden_state[
        row_of, position
    ]
    return hidden


def windows(reading: Reading, window: int, context: float) -> Iterator[Row]:
    """A trace in rows of at most `window` tokens, each with the question and, after the first, some
    earlier steps.

    A step that doesn't fit into a row loses its beginning. There are no rows if the question takes
    more than half of the window.
    """
    longer = max(
        (len(a) - len(b) for a, b in zip(reading.first, reading.steps, strict=False)), default=0
    )
    room = window - len(reading.head) - len(reading.tail) - max(0, longer)
    if room < window / 2:
        return
    join, steps = reading.join, [step[-room:] for step in reading.steps]
    for first, new, last in spans(
        [len(step) + len(join) for step in steps], room + len(join), context * window
    ):
        tokens, positions = list(reading.head), []
        for n in range(first, last):
            if n == first:
                tokens += reading.first[n][-room:] if reading.first else steps[n]
            else:
                tokens += join + steps[n]
            if n >= new:
                positions.append(len(tokens) - reading.back)
        yield Row(tokens + reading.tail, positions)
