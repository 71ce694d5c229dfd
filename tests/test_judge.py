"""The judge: its replies are scores with a bill, useless ones fail and say why, and long traces go
in windows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from reward_cases import TRACES, cut

from ponder.core import UserError
from ponder.core.scoring import scores_by_index
from ponder.rewards.judge import Judge, parse

SCRIPTED = '''"""A model that says what it is told."""
from dataclasses import dataclass, field
from ponder.core import Bill, Completion, Model, ModelFailure
@dataclass(kw_only=True)
class Scripted(Model):
    says: list[str] = field(default_factory=list)
    async def complete(self, request):
        asked.append(request.messages[-1].content)
        said = self.says[(len(asked) - 1) % len(self.says)]
        if said == "down":
            raise ModelFailure("endpoint down")
        return Completion("", said, "end", Bill(10, 0, 5))
asked = []
'''


def judge(tmp_path: Path, name: str, *says: str, **settings) -> tuple[Judge, list[str]]:
    (tmp_path / f"{name}.py").write_text(SCRIPTED)
    made = Judge(model={"name": str(tmp_path / f"{name}.py"), "says": list(says)}, **settings)
    import sys

    return made, sys.modules[name].asked


def test_a_judge_scores_and_is_billed(tmp_path) -> None:
    reward, asked = judge(
        tmp_path,
        "judge_one",
        'Well: {"a": 1} ```json\n{"steps": [0.9, 0, 1], "whole": 0.5}\n``` done',
    )
    (scores,) = reward.score(TRACES[:1])
    assert scores.steps == (0.9, 0.0, 1.0)
    assert scores.trajectory == 0.5
    assert scores.bill.tokens == 15
    assert "Step 3:\nThe answer is \\boxed{7}." in asked[0]
    assert "3 numbers" in asked[0]


def test_a_judge_that_says_nothing_useful_fails(tmp_path) -> None:
    replies = [
        "I like it.",
        '{"steps": [1], "whole": 1}',
        '{"steps": [1, 2, 0], "whole": 1}',
        '{"steps": [1, 1, 1]}',
        "down",
    ]
    reward, _ = judge(tmp_path, "judge_two", *replies)
    found = reward.score([TRACES[0]] * 5)
    assert [scores.total for scores in found] == [None] * 5
    assert [scores.why for scores in found] == [
        "the judge: no scores in the reply",
        "the judge: 1 scores for 3 steps",
        "the judge: 2 is not a score from 0 to 1",
        "the judge: None is not a score from 0 to 1",
        "the judge: endpoint down",
    ]
    assert found[0].bill.tokens == 15
    assert found[4].bill.tokens == 0


def test_a_judge_reads_long_traces_in_windows(tmp_path) -> None:
    trace = cut("q", *(f"step {n}: " + "x" * 300 for n in range(4)))
    replies = (
        '{"steps": [0.1, 0.2], "whole": 0.3}',
        '{"steps": [0.4], "whole": 0.5}',
        '{"steps": [{"score": 0.6}], "whole": 0.7}',
    )
    reward, asked = judge(tmp_path, "judge_three", *replies, window=200, context=0.5)
    (scores,) = reward.score([trace])
    assert scores.steps == (0.1, 0.2, 0.4, 0.6)
    assert scores.trajectory == 0.7
    assert scores.bill.tokens == 3 * 15
    assert "Those before step 3 are shown" in asked[1]
    assert "step 1: " in asked[1]
    assert "step 0: " not in asked[1]


def test_a_judges_reply_is_read_in_bounded_time() -> None:
    with pytest.raises(ValueError, match="no scores"):
        parse("{" * 20_000, 3)
    with pytest.raises(ValueError, match="not a score from 0 to 1"):
        parse('{"steps": [NaN], "whole": 1}', 1)
    with pytest.raises(UserError, match="has no key `adress`"):
        Judge(model={"name": "endpoint", "id": "x", "adress": "y"})


WAITING = '''"""A judge whose first reply never comes."""
import asyncio
from dataclasses import dataclass
from ponder.core import Bill, Completion, Model
@dataclass(kw_only=True)
class Waiting(Model):
    concurrency: int = 8
    async def __aexit__(self, *_):
        log.append("closed")
    async def complete(self, request):
        if "slowly" in request.messages[-1].content.partition("Question:")[2]:
            try:
                await asyncio.Event().wait()
            finally:
                log.append("cancelled")
        return Completion("", '{"steps": [0.5], "whole": 0.5}', "end", Bill(10, 0, 5))
log = []
'''


def test_scores_are_there_before_a_slow_reply_and_a_judge_is_closed_when_its_work_is_dropped(
    tmp_path,
) -> None:
    import sys

    (tmp_path / "judge_waiting.py").write_text(WAITING)
    reward = Judge(model={"name": str(tmp_path / "judge_waiting.py")})
    work = scores_by_index(
        reward, [cut("Think slowly.", "a"), cut("b?", "b"), cut("nothing"), cut("c?", "c")]
    )
    found = dict(next(work) for _ in range(3))
    assert sorted(found) == [1, 2, 3]
    assert found[2].why == "nothing to score"
    assert found[1].total == 1.0
    work.close()
    assert sys.modules["judge_waiting"].log == ["cancelled", "closed"]
