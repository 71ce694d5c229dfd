"""Weights combined by mergekit: the same bits as ours where we do the same, and the published
formulas elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from test_weights import bare, held, llama, same_bits
from transformers import AutoModelForCausalLM

from ponder.core import UserError
from ponder.training.weights import average, combine


def test_combining_needs_mergekit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [bare(tmp_path / name, w=torch.ones(2)) for name in "abc"]
    monkeypatch.setitem(sys.modules, "mergekit", None)
    with pytest.raises(UserError, match="ties needs mergekit\nhint: pip install mergekit"):
        combine("ties", folders[:2], [1, 1], tmp_path / "d", base=folders[2])
    for method, models, settings, said in (
        ("ties", 2, {}, "ties needs the base"),
        ("slerp", 2, {"base": folders[2]}, "slerp takes no base"),
        ("slerp", 3, {}, "slerp takes two models, not 3"),
        (
            "dare",
            2,
            {"base": folders[2], "density": 0.0},
            "density is a fraction above 0 and at most 1, not 0.0",
        ),
    ):
        with pytest.raises(UserError, match=said):
            combine(method, folders[:models], [1] * models, tmp_path / "d", **settings)
    assert not (tmp_path / "d").exists()


@pytest.mark.filterwarnings("default")  # mergekit's imports warn
def test_mergekit(tmp_path: Path) -> None:
    pytest.importorskip("mergekit")
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    one, two, base = (
        llama(tmp_path / name, n, "bfloat16", "20KB")
        for n, name in enumerate(("1+1", "2@2", "base"))
    )
    first, second, start = held(one), held(two), held(base)

    def near(folder: str, expected: dict) -> bool:
        return all(
            torch.allclose(held(tmp_path / folder)[k].float(), expected[k], rtol=0.01)
            for k in start
        )

    # The same bits as `linear`.
    for n, shares in enumerate(((0.5, 0.5), (0.3, 0.7), (1.0, 0.35))):
        average([one, two], shares, tmp_path / f"ours {n}")
        models = [
            {"model": {"model": {"path": str(folder)}}, "parameters": {"weight": share}}
            for folder, share in zip((one, two), shares, strict=True)
        ]
        order = MergeConfiguration.model_validate({"merge_method": "linear", "models": models})
        run_merge(
            order, str(tmp_path / f"theirs {n}"), MergeOptions(copy_tokenizer=False, quiet=True)
        )
        assert same_bits(held(tmp_path / f"ours {n}"), held(tmp_path / f"theirs {n}"))

    # DARE that drops nothing adds up the changes; TIES counts those whose sign prevails.
    changes = {
        k: (first[k].float() - start[k].float(), second[k].float() - start[k].float())
        for k in start
    }
    combine("dare", [one, two], [0.3, 0.9], tmp_path / "dare", base=base, density=1.0)
    assert near(
        "dare", {k: start[k].float() + 0.25 * a + 0.75 * b for k, (a, b) in changes.items()}
    )
    combine("ties", [one, two], [0.25, 0.75], tmp_path / "ties", base=base, density=1.0)
    elected = {k: torch.where(0.25 * a + 0.75 * b >= 0, 1, -1) for k, (a, b) in changes.items()}
    parts = {
        k: [0.25 * (a.sign() == elected[k]), 0.75 * (b.sign() == elected[k])]
        for k, (a, b) in changes.items()
    }
    expected = {
        k: start[k].float() + (parts[k][0] * a + parts[k][1] * b) / sum(parts[k])
        for k, (a, b) in changes.items()
    }
    assert near("ties", expected)
    assert held(tmp_path / "ties")["lm_head.weight"].dtype == torch.bfloat16
    assert (tmp_path / "ties" / "config.json").read_bytes() == (one / "config.json").read_bytes()
    assert (tmp_path / "ties" / "tokenizer.json").exists()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ties")

    combine("slerp", [one, two], [0.7, 0.3], tmp_path / "slerp")
    turned = {}
    for name in start:
        a, b = first[name].double(), second[name].double()
        angle = torch.acos((a * b).sum() / a.norm() / b.norm())
        turned[name] = (
            (torch.sin(0.7 * angle) * a + torch.sin(0.3 * angle) * b) / torch.sin(angle)
        ).float()
    assert near("slerp", turned)

    # What DARE drops is up to the seed, and nobody else's numbers are.
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        combine("dare", [one, two], [0.5, 0.5], tmp_path / name, base=base, seed=seed)
    assert torch.equal(torch.rand(3), drawn)
    assert same_bits(held(tmp_path / "x"), held(tmp_path / "y"))
    assert not same_bits(held(tmp_path / "x"), held(tmp_path / "z"))
