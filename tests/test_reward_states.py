"""Hidden states that rewards read: log-probabilities added to them, and their means, against plain
loops.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from reward_cases import SHAPE, SkyworkCase
from transformers import LlamaConfig, LlamaForCausalLM

from ponder.rewards._weights import mean_states
from ponder.rewards.pocket.log_probs import WithLogProbs
from ponder.traces import similarity


def test_log_probabilities_are_added_to_the_states() -> None:
    """Against a plain loop over tokens: the lowest since the pass began, and ten times its
    exponential.
    """
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, initializer_range=0.5, **SHAPE)).eval()
    begins, ids = (7, 9), torch.tensor([[3, 4, 7, 5, 6, 11, 9, 2, 2], [3, 7, 5, 9, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        extended = WithLogProbs(model, list(begins))(ids).last_hidden_state
        logs = model(ids).logits.log_softmax(-1)
        states = model.base_model(ids).last_hidden_state
    assert torch.allclose(extended[..., :-2], states)
    for row in range(2):
        lowest = 0.0
        for n, token in enumerate(ids[row].tolist()):
            inside = any(t in begins for t in ids[row, :n].tolist())
            if token in begins:
                lowest = 0.0
            elif inside:
                lowest = min(lowest, max(logs[row, n - 1, token].item(), -10.0))
            assert extended[row, n, -2].item() == pytest.approx(lowest, abs=1e-4)
            assert extended[row, n, -1].item() == pytest.approx(10 * math.exp(lowest), abs=1e-4)


def test_mean_states_are_means_of_states(tmp_path) -> None:
    case = SkyworkCase(tmp_path)
    config = tmp_path / "config.json"
    # the states are those of the file's precision
    config.write_text(config.read_text().replace("bfloat16", "float32"))
    texts = ["So x = 7.", "", "What is the sum of all the numbers?"]
    found = mean_states(str(tmp_path))(texts)
    for text, row in zip(texts, found, strict=True):
        tokens = case.tokenizer(text)["input_ids"]
        mean = (
            case.states(torch.tensor([tokens])).last_hidden_state[0].mean(0)
            if tokens
            else torch.zeros(32)
        )
        assert row == pytest.approx(mean.detach().numpy(), abs=1e-5)
    assert similarity(texts, texts[:1], mean_states(str(tmp_path)))[0, 0] == pytest.approx(1.0)
