"""The NumPy engine: a generation's logits don't depend on the rest of the batch, to the last bit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from ponder.models._batch import Generation
from ponder.models.pocket import SHIPPED
from ponder.models.pocket.engine import PAGE, NumpyEngine


class Recorded(Generation):
    """A generation that keeps its logits, and never ends by itself."""

    def choose(self, logits):
        self.logits = [*getattr(self, "logits", []), logits.copy()]
        return 3 + int(logits[3:].argmax())


def recorded(length: int, budget: int, seed: int) -> Recorded:
    """A generation with a made-up prompt."""
    prompt = np.random.default_rng(seed).integers(3, 1000, length).tolist()
    return Recorded(prompt, budget, 0.0, seed, lambda row: None)


def alone(row: Generation) -> Generation:
    engine = NumpyEngine(SHIPPED, 1)
    engine.join(row)
    while engine.busy:
        engine.step()
    return row


KINDS = [
    (20, 180),
    (PAGE - 1, 5),
    (PAGE, 70),
    (PAGE + 1, 140),
    (3 * PAGE, 9),
    (150, 90),
    (1, 2),
    (40, 1),
    (7, 60),
]


@pytest.mark.parametrize("rows", [1, 3, 16, 40, 100])
def test_logits_do_not_depend_on_the_batch_to_the_last_bit(rows) -> None:
    kinds = [(*KINDS[n % len(KINDS)], n) for n in range(4 * len(KINDS))]
    known = {kind: alone(recorded(*kind)) for kind in kinds[: len(KINDS)]}
    engine, waiting, all_rows = (
        NumpyEngine(SHIPPED, rows),
        [*kinds[len(KINDS) :], *kinds[: len(KINDS)]],
        [],
    )
    if rows < 16:
        waiting = waiting[-len(KINDS) :]
    while waiting or engine.busy:
        # Now one joins, now as many as there is room for.
        while waiting and engine.room:
            all_rows.append((waiting[0], recorded(*waiting.pop(0))))
            engine.join(all_rows[-1][1])
            if len(waiting) % 3:
                break
        if engine.busy:
            engine.step()
    for kind, row in all_rows:
        if kind in known:
            assert row.tokens == known[kind].tokens
            assert np.array_equal(row.logits, known[kind].logits)
    assert len(all_rows[-1][1].tokens) == all_rows[-1][1].budget


def test_samples_follow_the_seed_and_the_probabilities() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))

    def drawn(seed: int) -> list[int]:
        generation = Generation([1], 9, 1.0, seed)
        return [generation.choose(logits) for _ in range(1000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert np.bincount(drawn(1)) / 1000 == pytest.approx([0.6, 0.3, 0.1], abs=0.05)


def test_the_cache_is_as_large_as_the_texts_in_it() -> None:
    engine = NumpyEngine(SHIPPED, 12)
    rows = [recorded(30 + 17 * n, 12 * (1 + n * 5 % 12), n) for n in range(12)]
    for row in rows:
        engine.join(row)
    while engine.busy:
        engine.step()
        writing = [row for row in rows if len(row.tokens) < row.budget]
        pages = [page for row in writing for page in row.pages]
        assert sorted(pages) == list(range(len(pages)))
        assert [len(row.pages) for row in writing] == [-(-row.position // PAGE) for row in writing]


def test_prompts_and_texts_of_many_pages_are_those_of_transformers() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32").eval()
    for length in (2, PAGE, 3 * PAGE + 5):
        row = alone(recorded(length, 2 * PAGE + 3, length))
        with torch.no_grad():
            theirs = (
                reference(torch.tensor([row.prompt + row.tokens[:-1]]))
                .logits[0, length - 1 :]
                .numpy()
            )
        assert np.abs(np.array(row.logits) - theirs).max() < 1e-4


def test_a_text_ends_where_the_positions_do(tmp_path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "w")
    config = json.loads((SHIPPED / "config.json").read_text())
    (tmp_path / "w" / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 70})
    )
    engine, row = NumpyEngine(tmp_path / "w", 2), recorded(60, 1000, 1)
    engine.join(row)
    while engine.busy:
        engine.step()
    assert len(row.prompt) + len(row.tokens) == 70
    assert not row.ended
