"""What rewards with weights share: traces as tokens, cut to the model's window, scored in batches of like length.

Padding stands to the right of a causal model, so nothing that is read has seen it. Only the places where a score is
read go through the head: logits over a vocabulary are never made.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ponder.core import Bill, Reward, Scores, Steps, UserError, fingerprint, not_in_key
from ponder.rewards._windows import batches, spans

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 4096  # tokens, for a model that doesn't say


@dataclass(frozen=True)
class Reading:
    """A trace in tokens: a head, then the steps with a join between each two, then a tail."""

    head: list[int]  # with the question
    steps: list[list[int]]
    join: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    back: int = 1  # a step's score is read at the last of its tokens, the last but one, …
    first: list[list[int]] = field(default_factory=list)  # the steps as they look right after the head, if not alike


class Row(NamedTuple):
    """One pass through the model: its tokens, and the places where scores are read."""

    tokens: list[int]
    places: list[int]


@dataclass(frozen=True)
class Words:
    """A tokenizer that keeps what a trace says apart from what controls the model."""

    tokenizer: Any
    marker: str = ""

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text as tokens, none of which is special, whatever the text says."""
        found: list[list[int]] = self._encode(texts)["input_ids"]
        for n, text in enumerate(texts):
            if self.marker and self.marker in text:  # cut in two, it is letters
                parts = text.replace(self.marker, f"{self.marker[0]}\0{self.marker[1:]}").split("\0")
                found[n] = [token for part in self._encode(parts)["input_ids"] for token in part]
        return found

    def control(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def token(self, text: str) -> int:
        """The one token that a marker is."""
        return self.control(text)[-1]

    def runs(self, texts: Sequence[str], ends: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        """Each text encoded as a whole, in runs: each ends with the token that holds the character before its end."""
        coded = self._encode(texts, return_offsets_mapping=True)
        found = []
        for tokens, places, cuts in zip(coded["input_ids"], coded["offset_mapping"], ends, strict=True):
            runs, n = list[list[int]](), 0
            for cut in cuts:
                start = n
                while n < len(tokens) and places[n][0] < cut:
                    n += 1
                runs.append(tokens[start:n])
            found.append(runs)
        return found

    def _encode(self, texts: Sequence[str], **more: Any) -> Any:
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return self.tokenizer(list(texts), **options, **more) if texts else {"input_ids": []}

    def around(self, *messages: tuple[str, str]) -> list[str]:
        """The chat template's text before, between and after what the messages say."""
        if not self.tokenizer.chat_template:
            raise UserError("the reward's tokenizer has no chat template", hint="is the folder complete?")
        said = [f"<said {n}>" for n in range(len(messages))]
        turns = [{"role": role, "content": content or said[n]} for n, (role, content) in enumerate(messages)]
        text = str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
        parts = []
        for mark in (mark for mark, (_, content) in zip(said, messages, strict=True) if not content):
            before, _, text = text.partition(mark)
            parts.append(before)
        return [*parts, text]


@dataclass(frozen=True, kw_only=True)
class Weighted(Reward):
    """A reward that reads traces with weights on this machine."""

    id: str  # a folder in the Hugging Face format, or `org/name` on the hub
    revision: str = ""  # of a model on the hub
    window: int | None = None  # tokens read at once; if not given, what the model was made for
    context: float = 0.25  # share of the window that repeats the steps before it, where a trace is longer
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = not_in_key("cpu")  # or cuda, mps
    threads: int = not_in_key(1)  # on a CPU; two on a busy machine mostly wait for each other
    batch: int = not_in_key(8192)  # tokens in a batch, padding included

    example: ClassVar[dict[str, Any]] = {"id": "folder-of-weights"}
    marker: ClassVar[str] = ""  # a token that must not be read out of a text

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 0.9:
            raise UserError(f"context is a share of the window, from 0 to 0.9, not {self.context}")
        if self.batch < 1 or (self.window is not None and self.window < 8):
            raise UserError("batch must be at least 1 token, and window at least 8")

    @abstractmethod
    def network(self, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:
        """What turns tokens into states, and the head that turns states into scores from 0 to 1.

        A head may give two columns: a step's score, and what would be the trajectory's if it ended there.
        """

    @abstractmethod
    def read(self, words: Words, traces: Sequence[Steps]) -> Sequence[Reading | str]:
        """How each trace looks in tokens, or why it can't be read."""

    def whole(self, words: Words, traces: Sequence[Steps]) -> Sequence[Reading]:  # noqa: ARG002 for those who override it
        """How each trace looks where it is scored as a whole: its last score is the trajectory's."""
        return ()

    def identity(self) -> dict[str, Any]:
        # Local weights are known by what they are, not by where they lie.
        files = sorted(f for f in Path(self.id).glob("*") if f.suffix in (".safetensors", ".pt"))
        return {**super().identity(), "id": [fingerprint(file) for file in files] or self.id}

    def title(self) -> str:
        return self.id.rstrip("/").rsplit("/", 1)[-1]

    def parameters(self) -> int:
        return sum(p.numel() for p in self.loaded[0].parameters())

    @cached_property
    def loaded(self) -> tuple[Any, Callable[[Tensor], Tensor], Words]:
        import torch
        from transformers import AutoTokenizer
        from transformers.utils import logging

        if not os.path.isdir(self.id) and self.id.count("/") != 1:  # noqa: PTH112 `org/name` is no path
            raise UserError(f"there is no folder {self.id}", hint="id is a folder with weights, or org/name on the hub")
        torch.set_num_threads(self.threads)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            words = Words(AutoTokenizer.from_pretrained(self.id, **self._from), self.marker)
            states, head = self.network(words)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise UserError(f"can't load {self.id}: {str(error).strip().splitlines()[0]}") from None
        return states.eval(), head, words

    @property
    def _from(self) -> dict[str, Any]:
        return {"revision": self.revision} if self.revision else {}

    def load(self, kind: Any) -> Any:
        """Weights of a transformers class, every one of which must be there."""
        import torch

        found, said = kind.from_pretrained(
            self.id, dtype=getattr(torch, self.dtype), output_loading_info=True, **self._from
        )
        if said["missing_keys"]:
            what = f"{self.id} lacks the weights {', '.join(sorted(said['missing_keys'])[:3])}"
            raise UserError(what, hint=f"is it a model for the reward `{self.plugin_name()}`?")
        return found.to(self.device)

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        states, head, words = self.loaded
        window = self.window or getattr(states.config, "max_position_embeddings", None) or WINDOW
        readings = [*self.read(words, traces), *self.whole(words, traces)]
        rows, owners = list[Row](), list[int]()
        for n, reading in enumerate(readings):
            for row in () if isinstance(reading, str) else cut(reading, window, self.context):
                rows.append(row)
                owners.append(n)
        found: list[list[list[float]]] = [[] for _ in readings]
        spent = [0] * len(traces)
        for n, row, scores in zip(owners, rows, self._run(states, head, rows), strict=True):
            found[n] += scores
            spent[n % len(traces)] += len(row.tokens)
        said = []
        for n, trace in enumerate(traces):
            reading, own = readings[n], found[n]
            whole = found[len(traces) + n] if len(readings) > len(traces) else own
            bill = Bill(prompt_tokens=spent[n], counted_by="tokenizer")
            if isinstance(reading, str):
                said.append(Scores(why=reading))
            elif not own or not whole:
                said.append(Scores(why=f"its question leaves no room in a window of {window} tokens", bill=bill))
            else:
                assert len(own) == len(trace.part(self.of))
                trajectory = whole[-1][-1] if whole is not own or len(whole[-1]) > 1 else None
                said.append(Scores(tuple(step[0] for step in own), trajectory, bill=bill))
        return said

    def _run(self, states: Any, head: Callable[[Tensor], Tensor], rows: Sequence[Row]) -> list[list[list[float]]]:
        """The score or the two scores at each place of each row."""
        import torch

        found: list[list[list[float]]] = [[] for _ in rows]
        for some in batches([len(row.tokens) for row in rows], self.batch):
            with torch.inference_mode():
                scores = head(read_states(states, [rows[r] for r in some], self.device)).float()
            each = iter(scores.view(len(scores), -1).tolist())
            for r in some:
                found[r] = [next(each) for _ in rows[r].places]
        return found


def read_states(states: Any, rows: Sequence[Row], device: Any) -> Tensor:
    """What a model makes of the places of some rows, one row after the other."""
    import torch

    tokens = torch.zeros(len(rows), max(len(row.tokens) for row in rows), dtype=torch.long)
    for n, row in enumerate(rows):
        tokens[n, : len(row.tokens)] = torch.tensor(row.tokens)
    at = [(n, place) for n, row in enumerate(rows) for place in row.places]
    which, place = torch.tensor(at, device=device).T
    found: Tensor = states(input_ids=tokens.to(device), use_cache=False).last_hidden_state[which, place]
    return found


def cut(reading: Reading, window: int, context: float) -> Iterator[Row]:
    """A trace in rows of at most `window` tokens, each with the question and, from the second on, the steps before it.

    A step that is too long for a row of its own loses its beginning. No rows where the question takes more than half of
    the window.
    """
    longer = max((len(a) - len(b) for a, b in zip(reading.first, reading.steps, strict=False)), default=0)
    room = window - len(reading.head) - len(reading.tail) - max(0, longer)
    if room < window / 2:
        return
    join, steps = reading.join, [step[-room:] for step in reading.steps]
    for first, new, last in spans([len(step) + len(join) for step in steps], room + len(join), context * window):
        tokens, places = list(reading.head), []
        for n in range(first, last):
            if n == first:
                tokens += reading.first[n][-room:] if reading.first else steps[n]
            else:
                tokens += join + steps[n]
            if n >= new:
                places.append(len(tokens) - reading.back)
        yield Row(tokens + reading.tail, places)
