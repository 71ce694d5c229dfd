"""The base of rewards with local weights: turns traces into tokens, and scores them in batches.

Padding is on the right of a causal model, so no score depends on it. Only the positions where a
score is read go through the head: logits over the vocabulary are never computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

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
from ponder.traces.alignment import Encoder, Floats

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
    back: int = 1  # a step's score is read at this token from its end; 1: at its last
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
    trajectory: list[Row] | None  # None: the trajectory needs no rows of its own
    # by row: the one or two scores at each position
    scores: dict[int, list[list[float]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        return self.steps + (self.trajectory or [])

    def result(self, no_room: str) -> Scores:
        """Return the scores, once all rows are done."""
        tokens = sum(len(row.tokens) for row in self.rows)
        bill = Bill(prompt_tokens=tokens, counted_by="tokenizer")
        if not self.steps or self.trajectory == []:
            return Scores(why=no_room, bill=bill)
        step_scores = list[float]()
        for index in range(len(self.steps)):
            step_scores += [columns[0] for columns in self.scores[index]]
        last = self.scores[len(self.rows) - 1][-1]
        trajectory = None
        if self.trajectory or len(last) > 1:
            trajectory = last[-1]
        return Scores(tuple(step_scores), trajectory, bill=bill)


@dataclass(frozen=True)
class SafeTokenizer:
    """A tokenizer that never turns the text of a trace into a special token or a marker."""

    base: Any  # of transformers
    marker: str = ""  # a token that isn't special, but that a trace must not contain either

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, none of them special."""
        encoded: list[list[int]] = self._encode(texts)["input_ids"]
        for index, text in enumerate(texts):
            if self.marker and self.marker in text:
                # Encoded in pieces, the marker becomes ordinary text.
                broken_marker = f"{self.marker[0]}\0{self.marker[1:]}"
                pieces = text.replace(self.marker, broken_marker).split("\0")
                encoded[index] = list(chain.from_iterable(self._encode(pieces)["input_ids"]))
        return encoded

    def control(self, text: str) -> list[int]:
        """Return the tokens of a text that may contain special tokens."""
        return list(self.base(text, add_special_tokens=False)["input_ids"])

    def token(self, text: str) -> int:
        """Return the single token of a marker."""
        return self.control(text)[-1]

    def parts(self, texts: Sequence[str], ends: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        """Return the tokens of each text, divided at character offsets.

        A piece ends with the token of its last character.
        """
        encoded = self._encode(texts, return_offsets_mapping=True)
        divided = []
        for tokens, offsets, text_ends in zip(
            encoded["input_ids"], encoded["offset_mapping"], ends, strict=True
        ):
            pieces = list[list[int]]()
            position = 0
            for end in text_ends:
                start = position
                while position < len(tokens) and offsets[position][0] < end:
                    position += 1
                pieces.append(tokens[start:position])
            divided.append(pieces)
        return divided

    def _encode(self, texts: Sequence[str], **options: Any) -> Any:
        if not texts:
            return {"input_ids": [], "offset_mapping": []}
        return self.base(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            verbose=False,
            **options,
        )

    def around(self, *messages: tuple[str, str]) -> list[str]:
        """Return the chat template's text before, between and after gaps.

        Each message is a role and its content; an empty content is a gap.
        """
        if not self.base.chat_template:
            message = "the reward's tokenizer has no chat template"
            raise UserError(message, hint="download the complete model, with its tokenizer files")
        turns = list[dict[str, str]]()
        gaps = list[str]()
        for index, (role, content) in enumerate(messages):
            gap = f"<said {index}>"
            if not content:
                gaps.append(gap)
            turns.append({"role": role, "content": content or gap})
        rendered = self.base.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        pieces = list[str]()
        text = str(rendered)
        for gap in gaps:
            before, _, text = text.partition(gap)
            pieces.append(before)
        return [*pieces, text]


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
            message = f"context is a fraction of the window, from 0 to 0.9, not {self.context}"
            raise UserError(message)
        if self.batch is not None and self.batch < 1:
            raise UserError("batch must be at least 1 token, and window at least 8")
        if self.window is not None and self.window < 8:
            raise UserError("batch must be at least 1 token, and window at least 8")
        plugins.check_weights(self.id)

    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 for subclasses
        """Return the model, from tokens to hidden states, and the head, from those to scores.

        Scores are from 0 to 1. A head takes (positions, features) and returns (positions,), or
        (positions, 2): the step's score, and the trajectory's score if it ended there.
        """
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        path = Path(self.id) / HEADS
        if not path.is_file():
            message = f"{self.id} isn't a trained reward: it has no {HEADS}"
            hint = "ponder prepare reward TRACES --from MODEL -o DIR trains one"
            raise UserError(message, hint=hint)
        saved = load_file(path)
        heads = torch.nn.Linear(saved["weight"].shape[1], 2).to(self.device)
        heads.load_state_dict(saved)
        model = self.load(AutoModelForCausalLM)
        return self.states(model), lambda hidden: heads(hidden.float()).sigmoid()

    def states(self, model: Any) -> Any:
        """Return the part of a causal language model whose hidden states the heads read."""
        return model.base_model

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> Sequence[Reading | str]:
        """Return each trace as tokens, or why it can't be scored.

        Here a trace is plain text with blank lines between steps.
        """
        start = begin_tokens(tokenizer)
        gap = tokenizer.control(GAP)
        readings = list[Reading]()
        for question, steps in tokenized(
            tokenizer, [(t.question, t.part(self.of)) for t in traces]
        ):
            readings.append(Reading([*start, *question, *gap], steps, gap))
        return readings

    def whole(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> Sequence[Reading]:  # noqa: ARG002 for subclasses
        """Return each trace as tokens for the trajectory's score; empty if that needs no others.

        The last score counts.
        """
        return ()

    def identity(self) -> dict[str, Any]:
        # Local weights are identified by their content, not by their path.
        identity = super().identity()
        folder = Path(self.id)
        suffixes = (".bin", ".pt")
        if list(folder.glob("*.safetensors")):
            suffixes = (".safetensors", ".pt")
        files = sorted(file for file in folder.glob("*") if file.suffix in suffixes)
        if files:
            identity["id"] = [fingerprint(file) for file in files]
        else:
            identity["id"] = self.id
        return identity

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
        """Raise `UserError` unless `id` is a folder or may be a name on the hub.

        Without it, the hub is queried for 40 seconds.
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
                self.id, trust_remote_code=False, **self._revision()
            )
            safe = SafeTokenizer(tokenizer, self.marker)
            states, head = self.network(safe)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise UserError(f"can't load {self.id}: {str(error).strip().splitlines()[0]}") from None
        return states.eval(), head, safe

    def _revision(self) -> dict[str, Any]:
        if self.revision:
            return {"revision": self.revision}
        return {}

    def load(self, kind: Any) -> Any:
        """Load a transformers class; raise `UserError` if weights are missing."""
        import torch

        model, info = kind.from_pretrained(
            self.id,
            dtype=getattr(torch, self.dtype),
            output_loading_info=True,
            trust_remote_code=False,
            **self._revision(),
        )
        missing = sorted(info["missing_keys"])
        if missing:
            message = f"{self.id} lacks the weights {', '.join(missing[:3])}"
            name = self.plugin_name()
            hint = f"it isn't a model for the reward `{name}`: ponder list rewards"
            raise UserError(message, hint=hint)
        return model.to(self.device)

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        scores = dict(self.rate_each(traces))
        return [scores[index] for index in range(len(traces))]

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        states, head, tokenizer = self.loaded
        window = self.window or getattr(states.config, "max_position_embeddings", None) or WINDOW
        readings = self.read(tokenizer, traces)
        trajectories = self.whole(tokenizer, traces)
        no_room = f"its question leaves no room in a window of {window} tokens"
        ratings = list[_Rating]()
        rows = list[Row]()
        owners = list[tuple[int, int]]()  # of each row: its trace, and which of the trace's rows
        for index, reading in enumerate(readings):
            trajectory = None
            if trajectories:
                trajectory = self._rows(trajectories[index], window)
            rating = _Rating(self._rows(reading, window), trajectory)
            ratings.append(rating)
            rows += rating.rows
            owners += [(index, number) for number in range(len(rating.rows))]
            if not rating.rows:
                yield index, Scores(why=reading if isinstance(reading, str) else no_room)
        for row, row_scores in self._run(states, head, rows):
            index, number = owners[row]
            rating = ratings[index]
            rating.scores[number] = row_scores
            if len(rating.scores) == len(rating.rows):
                yield index, rating.result(no_room)

    def _rows(self, reading: Reading | str, window: int) -> list[Row]:
        if isinstance(reading, str):
            return []
        return list(windows(reading, window, self.context))

    def _run(
        self, states: Any, head: Callable[[Tensor], Tensor], rows: Sequence[Row]
    ) -> Iterator[tuple[int, list[list[float]]]]:
        """Yield each row's index and the one or two scores at each position, batch by batch."""
        import torch

        max_tokens = self.batch or (2048 if self.device == "cpu" else 16384)
        for batch in batches([len(row.tokens) for row in rows], max_tokens):
            with torch.inference_mode():
                hidden = read_states(states, [rows[index] for index in batch], self.device)
                scores = head(hidden).float()
            remaining = iter(scores.view(len(scores), -1).tolist())
            for index in batch:
                yield index, [next(remaining) for _ in rows[index].positions]


def begin_tokens(tokenizer: SafeTokenizer) -> list[int]:
    """Return the token that begins a text, if the model has one."""
    begin = tokenizer.base.bos_token_id
    if begin is None:
        return []
    return [begin]


def tokenized(
    tokenizer: SafeTokenizer, traces: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Yield the tokens of each trace's question and steps; all texts are encoded in one call."""
    texts = list[str]()
    for question, steps in traces:
        texts += [question, *steps]
    tokens = iter(tokenizer.plain(texts))
    for _, steps in traces:
        yield next(tokens), [next(tokens) for _ in steps]


def read_states(states: Any, rows: Sequence[Row], device: Any) -> Tensor:
    """Return the hidden states at the positions of all rows in order, (positions, features)."""
    import torch

    tokens = torch.zeros(len(rows), max(len(row.tokens) for row in rows), dtype=torch.long)
    positions = list[tuple[int, int]]()
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        positions += [(index, position) for position in row.positions]
    row_of, position_of = torch.tensor(positions, device=device).T
    output = states(input_ids=tokens.to(device), use_cache=False)
    hidden: Tensor = output.last_hidden_state[row_of, position_of]
    return hidden


def windows(reading: Reading, window: int, context: float) -> Iterator[Row]:
    """Yield a trace in rows of at most `window` tokens.

    Each row has the question and, after the first, some earlier steps. A step that doesn't fit
    into a row loses its beginning. There are no rows if the question takes more than half of the
    window.
    """
    extra = 0  # tokens by which a step is longer right after the head
    for first_step, step in zip(reading.first, reading.steps, strict=False):
        extra = max(extra, len(first_step) - len(step))
    room = window - len(reading.head) - len(reading.tail) - extra
    if room < window / 2:
        return
    join = reading.join
    steps = [step[-room:] for step in reading.steps]
    lengths = [len(step) + len(join) for step in steps]
    for first, new, end in spans(lengths, room + len(join), context * window):
        tokens = list(reading.head)
        positions = list[int]()
        for index in range(first, end):
            if index > first:
                tokens += join + steps[index]
            elif reading.first:
                tokens += reading.first[index][-room:]
            else:
                tokens += steps[index]
            if index >= new:
                positions.append(len(tokens) - reading.back)
        yield Row(tokens + reading.tail, positions)


def mean_states(id: str, device: str = "cpu", batch: int = 8192) -> Encoder:  # noqa: A002 the name in every [[model]]
    """Return an encoder of texts as mean hidden states, for `ponder.traces.similarity`.

    `id` is a folder of weights or a name on the hub. Texts are truncated to 512 tokens.
    """

    def encode(texts: Sequence[str]) -> Floats:
        import torch

        model, tokenizer = _load_encoder(id, device)
        means = np.zeros((len(texts), model.config.hidden_size))
        if not texts:
            return means
        encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        tokens = [row[:512] for row in encoded]
        for indices in batches([len(row) for row in tokens], batch):
            lengths = [len(tokens[index]) for index in indices]
            longest = lengths[0]
            if not longest:
                continue
            rows = torch.zeros(len(indices), longest, dtype=torch.long)
            for row, index in enumerate(indices):
                rows[row, : lengths[row]] = torch.tensor(tokens[index], dtype=torch.long)
            is_token = torch.arange(longest) < torch.tensor(lengths)[:, None]
            with torch.inference_mode():
                output = model(input_ids=rows.to(device), use_cache=False)
            states = output.last_hidden_state.float().cpu()
            sums = (states * is_token[..., None]).sum(1)
            counts = is_token.sum(1, keepdim=True).clamp(min=1)
            means[indices] = (sums / counts).numpy()
        return means

    return encode


@cache
def _load_encoder(id: str, device: str) -> tuple[Any, Any]:  # noqa: A002
    from transformers import AutoModel, AutoTokenizer

    no_bars()
    model = AutoModel.from_pretrained(id, trust_remote_code=False).to(device).eval()
    return model, AutoTokenizer.from_pretrained(id, trust_remote_code=False)
