"""Local weights: replies equal those of the NumPy engine and don't depend on the batch; pruned
caches are measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from ponder import Study
from ponder.core import (
    CacheBudget,
    Grade,
    Policy,
    Request,
    Source,
    TokenTrace,
    Trainable,
    TrainingProblems,
    UserError,
    fingerprint,
)
from ponder.kvcache import SelectCache, drift
from ponder.methods.compress import Compress
from ponder.models._torch_engine import SampledGeneration, load, load_anew, prompt_tokens
from ponder.models.oracle import Oracle as OracleModel
from ponder.models.pocket import SHIPPED, Pocket
from ponder.models.transformers import Transformers
from ponder.policies.dynts import Dynts
from ponder.policies.dynts.labels import importance
from ponder.policies.dynts.predictor import (
    RECIPES,
    Predictor,
    Recipe,
    batches,
    fit,
    labels,
    loss_of,
)
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.snapkv import Snapkv
from ponder.store.store import Store
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents


def requests(size: int, n: int) -> list[Request]:
    problems = itertools.islice(Tents().problems(size, seed=4), n)
    return [Request.first_turn(Tents(), problem, seed) for seed, problem in enumerate(problems)]


def answered(model, asked) -> list:
    async def all_at_once():
        async with model:
            return await asyncio.gather(*(model.complete(r) for r in asked))

    return asyncio.run(all_at_once())


def test_it_generates_what_the_numpy_engine_generates() -> None:
    asked = requests(16, 6) + requests(25, 6)
    ours, theirs = answered(Transformers(id="pocket"), asked), answered(Pocket(), asked)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.thinking, a.answer, a.stop) == (b.thinking, b.answer, b.stop)
        assert (a.bill.prompt_tokens, a.bill.thinking_tokens, a.bill.answer_tokens) == (
            b.bill.prompt_tokens,
            b.bill.thinking_tokens,
            b.bill.answer_tokens,
        )


@pytest.mark.parametrize(
    "method", [None, Compress(policy="random", budget=64, window=16, ratio=0.5)]
)
def test_a_text_depends_on_its_seed_alone(method) -> None:
    asked = requests(20, 5)
    made = [Transformers(id="pocket", temperature=1.0, concurrency=n, budget=120) for n in (1, 4)]
    alone, together = (answered(method.apply(m) if method else m, asked) for m in made)
    assert [c.thinking for c in alone] == [c.thinking for c in together]
    again = answered(
        Transformers(id="pocket", temperature=1.0, budget=120), [r for r in asked for _ in (0, 1)]
    )
    assert again[0].thinking == again[1].thinking


def test_top_p_and_top_k() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))

    def drawn(**sampling) -> set[int]:
        generation = SampledGeneration([1], 9, 1.0, 3, **sampling)
        return {generation.choose(logits) for _ in range(400)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_p=0.79) == {0, 1}
    assert drawn(top_k=3) == {0, 1, 2}
    assert drawn(top_p=0.01) == {0}


def test_the_cache_is_measured() -> None:
    (whole,) = answered(Transformers(id="pocket"), requests(25, 1))
    cut = Compress(policy="streaming", budget=64, window=16, ratio=0.5).apply(
        Transformers(id="pocket")
    )
    (less,) = answered(cut, requests(25, 1))
    token = 2 * 6 * 40 * 4  # keys and values, layers, width of their one head, bytes
    tokens = whole.bill.prompt_tokens + whole.bill.thinking_tokens + whole.bill.answer_tokens
    assert whole.measures["cache_peak"] == token * (tokens - 1)  # the last token is never read
    assert less.measures["cache_peak"] == token * 64
    assert less.measures["cache_bytes"] < whole.measures["cache_bytes"]


@pytest.mark.parametrize("codec", ["pocket", ""])
def test_prompts_are_counted_without_loading_weights(codec, tmp_path) -> None:
    (request,) = requests(16, 1)
    loaded = load(Source(SHIPPED, codec=codec))
    assert prompt_tokens(Source(SHIPPED, codec=codec), request) == len(loaded.prompt(request))
    assert prompt_tokens(Source(tmp_path), request) is None


def test_no_bars_but_ours(capfd, monkeypatch) -> None:
    """Of a GGUF file, transformers draws tqdm's own bar."""
    from tqdm.auto import tqdm
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    monkeypatch.setattr(gguf, "tqdm", tqdm)
    logging.enable_progress_bar()
    load_anew(Source(SHIPPED, codec="pocket"))
    assert list(gguf.tqdm([1, 2], desc="Converting")) == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_measures_are_stored_and_survive_grading_again(write, ponder) -> None:
    write(
        "s.toml",
        'problems = 3\n[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "transformers"\nid = "pocket"\nbudget = 200\n'
        'method = [{ name = "compress", policy = ["full", "random"], budget = 48, window = 8, ratio = 0.5, fidelity = "also" }]\n',
    )
    assert ponder("run", "s.toml").exit_code == 0
    assert ponder("regrade", "s.toml").exit_code == 0
    with Store(Path("ponder.db")) as store:
        found = list(store.outcomes(Study.load("s.toml").cells))
    assert len(found) == 6
    assert all(o.details["cache_bytes"] > 0 for o in found)
    assert [o.cell.settings["compress.policy"] for o in found] == ["full"] * 3 + ["random"] * 3
    assert all(o.details["kl"] > 0 for o in found if o.cell.settings["compress.policy"] == "random")


def test_drift_read_in_chunks_is_drift_read_token_by_token() -> None:
    loaded = load(Source(SHIPPED, codec="pocket"))
    (request,) = requests(25, 1)
    prompt = loaded.prompt(request)
    (said,) = answered(Transformers(id="pocket"), [request])
    ids = prompt + [loaded.tokenizer.convert_tokens_to_ids(word) for word in said.thinking.split()]
    for policy in (Random(), H2o(), Snapkv(queries=8), LastQuery()):
        keep = CacheBudget(budget=64, window=16, ratio=0.4)
        at_once = drift(loaded.model, prompt, ids[len(prompt) :], policy, keep)
        slow, fast = (
            SelectCache(loaded.model, policy, keep),
            SelectCache(loaded.model, Full(), None),
        )
        kl = []
        with torch.no_grad():
            for start, end in [
                (0, len(prompt)),
                *((n, n + 1) for n in range(len(prompt), len(ids) - 1)),
            ]:
                part = torch.tensor([ids[start:end]])
                a, b = (
                    loaded.model(part, past_key_values=c).logits[0, -1].log_softmax(-1)
                    for c in (fast, slow)
                )
                kl.append(float((a.exp() * (a - b)).sum()))
        assert at_once.kl == pytest.approx(np.mean(kl), abs=1e-5)
        assert at_once.kl > 0
    none = drift(
        loaded.model,
        prompt,
        ids[len(prompt) :],
        Random(),
        CacheBudget(budget=900, window=16, ratio=0.4),
    )
    assert none.kl == pytest.approx(0, abs=1e-6)


def test_labels_are_the_attention_of_the_answer() -> None:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (150,))
    found, hidden = importance(model, ids, 60)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids[None], output_attentions=True, output_hidden_states=True)
    rows = torch.stack(out.attentions)[:, 0, :, 60:]  # layers × heads × answer × tokens
    for n in range(90):
        rows[:, :, n, 60 + n] = 0
    assert torch.allclose(found, rows.mean((0, 1, 2)), atol=1e-7)
    assert torch.allclose(hidden, out.hidden_states[-1][0], atol=1e-5)


def test_a_predictor_learns_and_is_known_by_its_model(tmp_path) -> None:
    folder = tmp_path / "pocket"
    shutil.copytree(SHIPPED, folder)
    (folder / "dynts/card.json").unlink()
    loaded = load(Source(folder, codec="pocket"))
    with pytest.raises(UserError, match="no predictor"):
        Dynts().fitted(folder, loaded.tokenizer)
    end = loaded.end_of_thinking
    traces = []
    asked = requests(16, 24)
    for request, said in zip(asked, answered(Transformers(id="pocket"), asked), strict=True):
        prompt, thinking = loaded.prompt(request), said.thinking.split()
        words = [loaded.tokenizer.convert_tokens_to_ids(w) for w in thinking]
        tail = [
            end,
            *loaded.tokenizer.convert_tokens_to_ids(["a1A", "b2A"]),
            loaded.tokenizer.eos_token_id,
        ]
        traces.append(TokenTrace(prompt + words + tail, len(prompt), len(prompt) + len(words) + 1))
    *_, quality = fit(
        loaded.model,
        traces,
        Recipe(steps=60, tokens=512),
        folder / "dynts",
        {"model": fingerprint(folder / "model.safetensors")},
    )
    assert quality["rank_correlation"] > 0.3
    assert isinstance(Dynts().fitted(folder, loaded.tokenizer).predictor, Predictor)
    card = json.loads((folder / "dynts/card.json").read_text())
    (folder / "dynts/card.json").write_text(json.dumps({**card, "model": "another"}))
    with pytest.raises(UserError, match="other weights"):
        Dynts().fitted(folder, loaded.tokenizer)


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean `snapkv`"):
        Compress(policy="snapk", budget=64, window=8)
    with pytest.raises(UserError, match="in advance"):
        Compress(policy="oracle", budget=64, window=8)
    with pytest.raises(UserError, match="only in local weights"):
        Compress(policy="random", budget=64, window=8).apply(OracleModel())
    with pytest.raises(UserError, match="smaller than the budget"):
        Compress(policy="random", budget=64, window=64)
    with pytest.raises(UserError, match="can't load"):
        load(Source(Path("/nowhere/at/all")))
    cut = Compress(policy="random", budget=20, window=8, ratio=0.5).apply(Transformers(id="pocket"))
    with pytest.raises(UserError, match="tokens of the prompt are protected"):
        answered(cut, requests(25, 1))


def test_the_oracle_drifts_least() -> None:
    asked = requests(25, 12)
    kl = {}
    for policy in ("random", "oracle"):
        method = Compress(policy=policy, budget=72, window=8, ratio=0.3, fidelity="only")
        kl[policy] = np.array(
            [c.measures["kl"] for c in answered(method.apply(Transformers(id="pocket")), asked)]
        )
    assert kl["oracle"].mean() < kl["random"].mean()


class Recording(Policy, Trainable):
    """An eviction policy that records what it is fitted on."""

    traces: list[TokenTrace]

    def fitted(self, folder: Path, tokenizer: object) -> Policy:
        return self

    def needs_fit(self, folder: Path) -> bool:
        return not (folder / "recording").exists()

    def fit(self, network, traces, folder, facts):
        self.traces, self.facts = list(traces), facts
        (folder / "recording").touch()
        yield {"fitted": len(self.traces)}

    def score(self, view):
        raise AssertionError("nothing is evicted here")


@pytest.fixture
def weights(tmp_path) -> Path:
    """A copy of the shipped weights without a fitted predictor."""
    shutil.copytree(SHIPPED, tmp_path / "weights", ignore=shutil.ignore_patterns("dynts*"))
    return tmp_path / "weights"


class HalfRejected(Tents):
    """Tents, but every answer to half of the puzzles is wrong: the pocket model solves nearly all
    of this size.
    """

    @classmethod
    def plugin_name(cls) -> str:
        return "tents"

    def grade(self, problem, answer):
        return (
            super().grade(problem, answer)
            if sum(map(ord, problem.gold)) % 2
            else Grade(False, why="rejected")
        )


@pytest.fixture
def practice(tmp_path) -> TrainingProblems:
    """Forty puzzles, of which a study asks the first ten."""
    puzzles = itertools.islice(Tents().problems(16, seed=8), 40)
    (tmp_path / "ids.txt").write_text("\n".join(puzzle.gold for puzzle in puzzles))
    return TrainingProblems(HalfRejected(ids=tmp_path / "ids.txt"), 16, seed=1, asked=10)


def test_a_policy_is_fitted_on_right_answers_to_other_problems(weights, practice) -> None:
    policy, model = Recording(), Transformers(id=str(weights))
    asked, *rest = [
        {p.gold for p in itertools.islice(practice.task.problems(16, 1), n)} for n in (10, 40)
    ]
    progress = list(model.fit_policy(policy, [practice]))
    assert [report["answered"] for report in progress[:-1]] == [*range(16, 31, 16), 30]
    assert progress[0] == {"task": "tents", "size": 16, "answered": 16, "of": 30}
    assert progress[-2]["correct"] == progress[-1]["fitted"] == len(policy.traces)
    assert policy.facts == {"task": "tents", "on": [practice.identity()]}
    prompts = {}
    for problem in practice.task.fixed():
        prompts[
            tuple(Pocket.codec("tents").prompt_ids(Request.first_turn(practice.task, problem)))
        ] = problem
    end = load(Source(weights, codec="pocket")).end_of_thinking
    right = {}
    for trace in policy.traces:
        problem = prompts[tuple(trace.ids[: trace.question])]
        _, answer, thought = Pocket.codec("tents").reply(
            Request.first_turn(practice.task, problem), trace.ids[trace.question :]
        )
        right[problem.gold] = practice.task.grade(problem, answer).correct
        assert trace.answer == trace.question + thought + 1
        assert trace.ids[trace.answer - 1] == end
    assert all(right.values())
    assert 10 <= len(right) <= 20
    assert right.keys() <= rest[0] - asked
    assert list(model.fit_policy(policy, [practice])) == []  # it is there


def test_dynts_is_fitted_beside_the_weights(weights, practice) -> None:
    model = Transformers(id=str(weights))
    with pytest.raises(UserError, match="no predictor"):
        answered(
            model.with_policy(Dynts(), CacheBudget(budget=64, window=8), "no"), requests(16, 1)
        )
    *_, last = model.fit_policy(Dynts(), [practice])
    assert last == {"made": str(weights / "dynts/predictor.safetensors")}
    assert json.loads((weights / "dynts/card.json").read_text())["task"] == "tents"
    assert not Dynts().needs_fit(weights)
    (reply,) = answered(
        model.with_policy(Dynts(), CacheBudget(budget=64, window=8), "no"), requests(16, 1)
    )
    assert reply.thinking


def test_a_predictor_belongs_to_weights_in_several_files(tmp_path) -> None:
    first, second = (tmp_path / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    first.write_bytes(b"a")
    second.write_bytes(b"b")
    policy = Dynts().with_training("these problems", tmp_path)
    before = policy.fitted_path(tmp_path)
    assert policy.needs_fit(tmp_path)
    second.write_bytes(b"c")
    assert policy.fitted_path(tmp_path) != before


def key_of(policy: str, weights: str = "pocket", **study) -> str:
    """The key of the only cell of a study."""
    method = {"name": "compress", "policy": policy, "budget": 96, "window": 8, "ratio": 0.1}
    model = {"name": "transformers", "id": weights, "budget": 400, "method": [method]}
    task = {"name": "tents", "size": 25}
    (cell,) = Study.from_table(
        {"problems": 4, "seed": 18, "task": [task], "model": [model], **study}, folder=Path()
    ).cells
    return cell.key.hex()


def test_what_a_predictor_learnt_from_is_in_the_key_if_a_study_says_it() -> None:
    # The key of stored attempts with the predictor that ships.
    assert key_of("dynts") == "250aabeb22ef22e3c097909553a4b49e"
    small, large = ([{"name": "tents", "size": size}] for size in (16, 36))
    assert len({key_of("dynts"), key_of("dynts", train=small), key_of("dynts", train=large)}) == 3
    assert key_of("dynts", train=small) == key_of("dynts", train=small)
    assert key_of("random", train=small) == key_of("random")  # it learns nothing


def test_what_a_predictor_learnt_from_is_in_the_key_unless_it_ships(
    weights, tmp_path, monkeypatch
) -> None:
    """Two studies on one's own weights train their predictors on different problems."""

    def method(size: int, weights: str = "pocket", before: tuple = ()) -> Compress:
        table = {"name": "compress", "policy": "dynts", "budget": 96, "window": 8}
        model = {"name": "transformers", "id": weights, "budget": 400, "method": [*before, table]}
        task = {"name": "tents", "size": size}
        (cell,) = Study.from_table(
            {"problems": 4, "seed": 18, "task": [task], "model": [model]}, folder=Path()
        ).cells
        return cell.methods[-1]

    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "made"))
    own, merge = str(weights), {"name": "merge", "other": {"name": "pocket"}, "weight": 0.5}
    assert "on" not in method(25).identity()
    for given in ({"weights": own}, {"before": (merge,)}):
        assert method(25, **given).identity()["on"] != method(16, **given).identity()["on"]
        assert method(25, **given).identity() == method(25, **given).identity()
    assert key_of("dynts", own, train=[{"name": "tents", "size": 25}]) == key_of("dynts", own)
    assert key_of("random", own) == key_of("random", own, train=[{"name": "tents", "size": 16}])
    # Before either is made: each has a folder of its own, and neither is the one beside the
    # weights.
    paths = {
        path
        for size in (16, 25)
        for path in method(size, own).missing_outputs(Transformers(id=own))
    }
    assert len(paths) == 2
    assert {path.parent for path in paths} == {tmp_path / "made"}


def test_each_training_set_has_its_own_predictor(weights, practice, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "made"))
    for name, recipe in RECIPES.items():
        monkeypatch.setitem(RECIPES, name, replace(recipe, steps=5))
    model = Transformers(id=str(weights))
    methods = [
        Compress(policy="dynts", budget=64, window=8, settings=settings).with_training(
            (replace(practice, seed=seed, in_key=True),)
        )
        for seed, settings in ((1, {}), (2, {}), (1, {"recipe": "published"}))
    ]
    made = set()
    for method in methods:
        (path,) = method.missing_outputs(model)
        made.add(path)
        assert path.parent == tmp_path / "made"
        with pytest.raises(UserError, match="no predictor") as caught:
            answered(method.apply(model), requests(16, 1))
        assert path.name in caught.value.hint
    for method in methods[1:]:
        (path,) = method.missing_outputs(model)
        *_, last = method.make(model)
        assert last == {"made": str(path / "predictor.safetensors")}
        card = json.loads((path / "card.json").read_text())
        assert card["on"] == [method.train_on[0].identity()]
        assert not method.missing_outputs(model)
        assert answered(method.apply(model), requests(16, 1))[0].thinking
    assert len(made) == 3
    assert methods[0].missing_outputs(model)  # its own isn't there, whatever the others have made
    assert not (weights / "dynts").exists()


def test_the_published_recipe() -> None:
    published = RECIPES["published"]
    paid = torch.tensor([0.001, 0.0014, 0.002, 0.0])
    # 10 · .001^.3 / .3 = 33.333 · 10^-.9 = 4.1964; .0014: 4.6422; .002: 5.1664.
    wanted = labels(paid, published)
    assert wanted.tolist() == pytest.approx([4.1964, 4.6422, 5.1664, 0], abs=1e-4)
    # Errors of 1: (5 + 5 + 1 + 1) / 4.
    assert loss_of(wanted + 1, wanted, published).item() == pytest.approx(3)
    assert loss_of(wanted + 1, wanted, RECIPES["ponder"]).item() == pytest.approx(1)
    edge = torch.tensor([4.0, 5.0])
    assert loss_of(edge + 1, edge, published).item() == pytest.approx(3)


def test_batches_of_whole_traces() -> None:
    torch.manual_seed(0)
    lengths, of = [3, 1, 4, 2], torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 3, 3])
    seen = []
    for batch in batches(lengths, Recipe(steps=4, traces=2)):
        traces = of[batch].unique().tolist()
        assert len(traces) == 2
        assert len(batch) == sum(lengths[n] for n in traces)  # whole
        seen += traces
    assert sorted(seen[:4]) == sorted(seen[4:]) == [0, 1, 2, 3]
    assert {len(batch) for batch in batches(lengths, Recipe(steps=2, traces=9))} == {10}
    assert {len(batch) for batch in batches(lengths, Recipe(steps=2, tokens=7))} == {7}


def test_what_a_policy_cannot_be_fitted_to(practice, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="only to weights in a folder, not to org/name") as caught:
        list(Transformers(id="org/name").fit_policy(Dynts("published"), [practice]))
    assert "hf download org/name" in caught.value.hint
    turns = TrainingProblems(Execution(dictionary=8), 4, seed=1)
    with pytest.raises(UserError, match="problems of one turn"):
        list(Transformers(id="pocket").fit_policy(Recording(), [turns]))


def test_a_derived_model_has_its_own_weights(weights) -> None:
    model = Transformers(id="pocket", temperature=0.5)
    assert model.source(Tents()).folder == SHIPPED
    derived = model.with_weights(weights)
    assert derived.source(Tents()) == model.source(Tents())._replace(folder=weights)
    assert derived.at_temperature(0.7).source(Tents()).folder == weights
    assert derived.temperature == 0.5
    policy, budget = Random(), CacheBudget(budget=64, window=8)
    pruned = model.with_policy(policy, budget, "also").at_temperature(1.0)
    assert (pruned.policy, pruned.cache_budget, pruned.fidelity) == (policy, budget, "also")
    assert model.policy is None


def test_the_card_says_which_codec_reads_the_weights(weights) -> None:
    card = json.loads((weights / "card.json").read_text())
    assert Transformers(id=str(weights)).source(Tents()).codec == "pocket"
    # Ponder once wrote cards without a name. The model that the weights came from still reads them.
    (weights / "card.json").write_text(json.dumps({key: card[key] for key in ("task", "digest")}))
    with pytest.raises(UserError, match="doesn't say which model") as caught:
        Transformers(id=str(weights)).source(Tents())
    assert 'name = "pocket"' in caught.value.hint
    asked = requests(16, 2)
    replies = [
        answered(m, asked)
        for m in (Transformers(id="pocket").with_weights(weights), Pocket(weights=weights))
    ]
    assert [reply.answer for reply in replies[0]] == [reply.answer for reply in replies[1]]
    (weights / "card.json").write_text('{"license": "mit"}')  # another program's
    assert Transformers(id=str(weights)).source(Tents()).codec == ""


def test_damaged_weights_are_refused(weights) -> None:
    content = bytearray((weights / "model.safetensors").read_bytes())
    content[-1000] ^= 255
    (weights / "model.safetensors").write_bytes(content)
    for source in (Source(weights), Source(weights, codec="pocket")):
        with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
            load(source)


@pytest.mark.parametrize(
    ("attn", "generates", "trains"),
    [
        ("auto", "sdpa", "sdpa"),
        ("eager", "eager", "eager"),
        ("flex_attention", "sdpa", "flex_attention"),
    ],
)
def test_attention_implementations(attn, generates, trains, monkeypatch) -> None:
    used = []
    monkeypatch.setattr(
        "ponder.models.transformers.load", lambda source: used.append(load(source)) or used[-1]
    )
    method = Compress(policy="snapkv", budget=64, window=16, ratio=0.5)
    model, asked = Transformers(id="pocket", attn=attn, budget=80), requests(16, 2)
    for other, one in (
        (Transformers(id="pocket", budget=80), model),
        (method.apply(Transformers(id="pocket", budget=80)), method.apply(model)),
    ):
        assert [c.tokens for c in answered(one, asked)] == [
            c.tokens for c in answered(other, asked)
        ]
    assert used[0].model.config._attn_implementation == generates
    assert load_anew(model.source(Tents())).model.config._attn_implementation == trains


def test_attention_is_in_the_key_only_if_it_is_set() -> None:
    plain = Transformers(id="pocket").identity()
    assert "attn" not in plain
    assert Transformers(id="pocket", attn="auto").identity() == plain
    assert Transformers(id="pocket", attn="eager").identity() == {**plain, "attn": "eager"}


def test_attention_that_can_not_be_used(write, ponder, monkeypatch) -> None:
    study = '[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "transformers"\nid = "pocket"\nattn = "{}"\n'
    write("s.toml", study.format("spda"))
    result = ponder("plan", "s.toml")
    assert (result.exit_code, "sdpa" in result.stderr) == (2, True)
    write("s.toml", study.format("flash_attention_2"))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert 'attn = "flash_attention_2" needs the package flash_attn, or kernels' in result.stderr
    assert 'hint: attn = "sdpa"' in result.stderr
    monkeypatch.setattr(
        "ponder.models.transformers.find_spec", lambda package: package == "flash_attn" or None
    )
    with pytest.raises(UserError, match='"flash_attention_2" needs a GPU'):
        Transformers(id="pocket", attn="flash_attention_2").ready()
    Transformers(id="pocket", attn="flash_attention_2", device="cuda").ready()
    # what transformers says
    with pytest.raises(UserError, match=r'with attn = "flash_attention_2": ') as error:
        load_anew(Transformers(id="pocket", attn="flash_attention_2").source(Tents()))
    assert 'attn = "sdpa"' in error.value.hint


def test_dtype() -> None:
    (request,) = requests(16, 1)
    for dtype, size in (("bfloat16", 2), ("float16", 2), ("float32", 4)):
        model = Transformers(id="pocket", dtype=dtype, budget=20)
        weights = load(model.source(Tents())).model
        assert {p.dtype for p in weights.parameters()} == {getattr(torch, dtype)}
        (reply,) = answered(model, [request])
        held = reply.bill.prompt_tokens + 19  # the last token is never read
        assert reply.measures["cache_peak"] == 2 * 6 * 40 * size * held
    assert Transformers(id="pocket", dtype="bfloat16").identity()["dtype"] == "bfloat16"
