"""Traces as they are published: each layout is read right, or refused with the columns that were
found.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from ponder.core import UserError
from ponder.core.parquet import CHUNK
from ponder.traces import Understood, read, understand

# Rows with exactly the columns of the published datasets, and the traces in them: question,
# thinking, answer, and what else is known.
S1K = {
    "solution": "12", "question": "3 · 4?", "cot_type": "math", "source_type": "AI-MO/NuminaMath-CoT/aops_forum",
    "metadata": "{'url': None}", "cot": None, "thinking_trajectories": ["Three fours.\n\nSo 12."], "attempt": "It is 12.",
}  # fmt: skip
S1K_11 = {
    "solution": "12", "question": "3 · 4?", "cot_type": "math", "source_type": "aops", "metadata": "{}",
    "gemini_thinking_trajectory": "Threes.", "gemini_attempt": "It is 13.",
    "deepseek_thinking_trajectory": "Okay, so fours.", "deepseek_attempt": "\\boxed{12}",
    "gemini_grade": "No", "gemini_grade_reason": "13 is not 12", "deepseek_grade": "Yes", "deepseek_grade_reason": "",
}  # fmt: skip
OPENR1 = {
    "problem": "3 · 4?", "solution": "We multiply.", "answer": "12", "problem_type": "Algebra",
    "question_type": "math-word-problem", "source": "olympiads", "uuid": "u7", "is_reasoning_complete": [True, True, False],
    "generations": ["<think>\nFours.\n</think>\n\nIt is 12.", "<think>Threes.</think>It is 13.", "<think>Hm"],
    "correctness_math_verify": [False, False, None], "correctness_llama": [True, None, None],
    "finish_reasons": ["stop", "stop", "length"], "correctness_count": 1,
    "messages": [{"role": "user", "content": "3 · 4?"}, {"role": "assistant", "content": "<think>\nFours.\n</think>\n\nIt is 12."}],
}  # fmt: skip
THOUGHTS = {
    "system": "Your role as an assistant involves …",
    "conversations": [
        {"from": "user", "value": "3 · 4?"},
        {"from": "assistant", "value": "<|begin_of_thought|>\n\nFours.\n\nSo 12.\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nIt is 12.\n\n<|end_of_solution|>"},
    ],
}  # fmt: skip
METADATA = {
    "problem": "3 · 4?", "deepseek_reasoning": "Fours.", "deepseek_solution": "It is 12.", "ground_truth_solution": "12",
    "domain": "math", "source": "numina_math", "test_cases": None, "starter_code": None,
}  # fmt: skip
ASKED = {"role": "user", "content": "3 · 4?"}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is 12.", "reasoning_content": "Fours."}}  # fmt: skip
COMPLETION = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "r1", "choices": [CHOICE], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}  # fmt: skip
PARTS = [
    {"type": "thinking", "thinking": "Fours.", "signature": "x"},
    {"type": "text", "text": "It is 12."},
]

ONE = ("3 · 4?", "Fours.", "It is 12.")
LAYOUTS: dict[str, tuple[dict, list[tuple], dict]] = {
    "s1K": (S1K, [("3 · 4?", "Three fours.\n\nSo 12.", "It is 12.")], {"gold": "12", "topic": "math"}),
    "OpenThoughts-114k": (THOUGHTS, [("3 · 4?", "Fours.\n\nSo 12.", "It is 12.")], {}),
    "OpenThoughts-114k, metadata": (METADATA, [ONE], {"gold": "12", "teacher": "deepseek", "topic": "math"}),
    "messages": ({"messages": [ASKED, {"role": "assistant", "content": "It is 12.", "reasoning_content": "Fours."}]}, [ONE], {}),
    "messages of gpt-oss": ({"messages": [ASKED, {"role": "assistant", "thinking": "Fours.", "content": "It is 12."}]}, [ONE], {}),
    "channels": ({"messages": [ASKED, {"role": "assistant", "channel": "analysis", "content": "Fours."}, {"role": "assistant", "channel": "final", "content": "It is 12."}]}, [ONE], {}),
    "OpenRouter": ({"messages": [ASKED, {"role": "assistant", "content": "It is 12.", "reasoning_details": [{"type": "reasoning.text", "text": "Fours."}, {"type": "reasoning.encrypted", "data": "x"}]}]}, [ONE], {}),
    "reasoning_content": ({"prompt": "3 · 4?", "reasoning_content": "Fours.", "content": "It is 12.", "answer": "12"}, [ONE], {"gold": "12"}),
    "Alpaca": ({"instruction": "Multiply.", "input": "3 · 4?", "output": "<think>Fours.</think>It is 12."}, [("Multiply.\n\n3 · 4?", "Fours.", "It is 12.")], {}),
    "Alpaca without input": ({"instruction": "3 · 4?", "input": "", "output": "It is 12."}, [("3 · 4?", "", "It is 12.")], {}),
    "ShareGPT": ({"id": "s1", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "3 · 4?"}, {"from": "gpt", "value": "<think>Fours.</think>It is 12."}]}, [ONE], {"id": "s1"}),
    "content parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "3 · 4?"}]}, {"role": "assistant", "content": PARTS}]}, [ONE], {}),
    "choices": ({"messages": [ASKED], **COMPLETION}, [ONE], {"teacher": "r1", "tokens": 9}),
    "a logged request": ({"request": {"messages": [ASKED]}, "response": {"status_code": 200, "body": COMPLETION}}, [ONE], {"teacher": "r1", "tokens": 9}),
    "text completion": ({"prompt": "3 · 4?", "choices": [{"text": "<think>Fours.</think>It is 12.", "index": 0}]}, [ONE], {}),
    "LIMO": ({"question": "3 · 4?", "solution": "Fours.\n\nIt is 12.", "answer": "12"}, [("3 · 4?", "", "Fours.\n\nIt is 12.")], {"gold": "12"}),
    "OpenMathReasoning": ({"expected_answer": "12", "problem_type": "has_answer_extracted", "problem_source": "aops", "generation_model": "QwQ-32B", "pass_rate_72b_tir": "0.5", "problem": "3 · 4?", "generated_solution": "<think>Fours.</think>It is 12.", "inference_mode": "cot", "used_in_kaggle": True}, [ONE], {"gold": "12", "teacher": "QwQ-32B"}),
    "Nemotron": ({"input": [ASKED], "output": "<think>Fours.</think>It is 12.", "category": "math", "reasoning": "on", "generator": "R1", "system_prompt": "detailed thinking on"}, [ONE], {"teacher": "R1"}),
    "Dolphin-R1": ({"messages": [ASKED], "reasoning": "Fours.", "answer": "It is 12.", "model": "r1"}, [ONE], {"teacher": "r1", "gold": None}),
    "TRL": ({"prompt": [ASKED], "completion": [{"role": "assistant", "content": "<think>Fours.</think>It is 12."}]}, [ONE], {}),
    "natural_reasoning": ({"question": "3 · 4?", "reference_answer": "12", "responses": [{"response_model": "llama", "response": "It is 12."}]}, [("3 · 4?", "", "It is 12.")], {"gold": "12", "teacher": "llama"}),
    "DeepMath": ({"question": "3 · 4?", "final_answer": "12", "difficulty": 1.0, "topic": "Algebra", "r1_solution_1": "<think>Fours.</think>It is 12.", "r1_solution_2": "<think>Threes.</think>It is 12."}, [ONE, ("3 · 4?", "Threes.", "It is 12.")], {"gold": "12", "teacher": "r1"}),
    "ProcessBench": ({"id": "gsm8k-0", "generator": "Qwen2", "problem": "3 · 4?", "steps": ["Fours.", "12"], "final_answer_correct": True, "label": -1}, [("3 · 4?", "", "Fours.\n\n12")], {"correct": True, "teacher": "Qwen2"}),
    "messages with the answer beside": ({"problem": "3 · 4?", "answer": "12", "messages": [ASKED, {"role": "assistant", "content": "<think>Fours.</think>It is 12."}]}, [ONE], {"gold": "12"}),
    "parts in columns": ({"prompt": "3 · 4?", "reasoning": [{"type": "text", "text": "Fours."}], "response": ["It is", {"type": "text", "text": "12."}]}, [("3 · 4?", "Fours.", "It is\n\n12.")], {}),
    "texts in columns": ({"prompt": "3 · 4?", "reasoning": ["Fours.", "So 12."], "response": ["It is 12."]}, [("3 · 4?", "Fours.\n\nSo 12.", "It is 12.")], {}),
    "a copy in tags": ({"prompt": "3 · 4?", "reasoning_content": "Fours.", "content": "<think>Fours.</think>It is 12."}, [ONE], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_read_right(name) -> None:
    record, texts, known = LAYOUTS[name]
    readings = understand(record)
    assert [(r.trace.question, r.trace.thinking, r.trace.answer) for r in readings] == texts
    for reading in readings:
        assert {field: getattr(reading.trace, field) for field in known} == known
        assert {
            "question",
            *(f for f in ("thinking", "answer") if getattr(reading.trace, f)),
        } <= set(reading.columns)
        # as `ponder select` reads it
        (again,) = understand({**reading.trace.record(), "scored_by": "x", "score": 0.5})
        assert {**again.trace.record(), "scored_by": "x"} == {
            **reading.trace.record(),
            "scored_by": "x",
            "score": 0.5,
        }


def test_s1k_11_has_a_trace_of_each_teacher() -> None:
    gemini, deepseek = understand({**S1K_11, "id": 4})
    assert (gemini.trace.thinking, gemini.trace.answer) == ("Threes.", "It is 13.")
    assert (deepseek.trace.thinking, deepseek.trace.answer) == ("Okay, so fours.", "\\boxed{12}")
    assert [r.trace.teacher for r in (gemini, deepseek)] == ["gemini", "deepseek"]
    assert [r.trace.correct for r in (gemini, deepseek)] == [False, True]
    assert {r.trace.gold for r in (gemini, deepseek)} == {"12"}
    assert [r.trace.id for r in (gemini, deepseek)] == ["4/gemini", "4/deepseek"]
    assert deepseek.columns["thinking"] == "deepseek_thinking_trajectory"
    assert deepseek.columns["gold"] == "solution"
    assert gemini.trace.extra["grade_reason"] == "13 is not 12"
    assert not [key for key in deepseek.trace.extra if key.startswith("gemini")]  # the other trace
    (alone,) = understand(
        {k: v for k, v in S1K_11.items() if not k.startswith("gemini") and k != "deepseek_attempt"}
    )
    # the solution is never taken for an attempt
    assert (alone.trace.answer, alone.trace.gold) == ("", "12")


def test_openr1_has_a_trace_of_each_generation() -> None:
    readings = understand(OPENR1)
    traces = [r.trace for r in readings]
    assert [t.thinking for t in traces] == ["Fours.", "Threes.", "Hm"]
    assert [t.answer for t in traces] == ["It is 12.", "It is 13.", ""]
    # right if one of the two checks says so
    assert [t.correct for t in traces] == [True, False, None]
    assert [t.id for t in traces] == ["u7/0", "u7/1", "u7/2"]
    assert {(t.gold, t.topic) for t in traces} == {("12", "Algebra")}
    assert [t.extra["finish_reasons"] for t in traces] == ["stop", "stop", "length"]
    assert "generations" not in traces[0].extra
    assert "`messages`" in readings[0].ignored
    assert "`solution`" in readings[0].ignored
    empty = understand({**OPENR1, "generations": [None, "It is 12.", ""]})
    assert [r.trace.answer for r in empty] == ["It is 12."]
    assert "generations[0], which is empty" in empty[0].ignored


def test_the_last_question_and_what_follows_it() -> None:
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b"},
    ]
    (reading,) = understand({"messages": [*turns, ASKED, {"role": "assistant", "content": "c"}, {"role": "tool", "content": "d"}, {"role": "assistant", "content": "e"}]})  # fmt: skip
    assert (reading.trace.question, reading.trace.answer) == ("3 · 4?", "c\n\ne")
    assert reading.ignored == ("messages: 2 earlier messages", "messages: the system message", "messages: messages of tools")  # fmt: skip
    assert reading.columns["answer"] == "messages[4].content and messages[6].content"


def test_two_messages_of_the_user_in_a_row_are_one_question() -> None:
    (reading,) = understand({"messages": [{"role": "user", "content": "Given x = 3."}, ASKED, {"role": "assistant", "content": "12"}]})  # fmt: skip
    assert reading.trace.question == "Given x = 3.\n\n3 · 4?"
    assert not reading.ignored


def test_a_teacher_may_have_other_names_for_its_answer() -> None:
    for name in ("qwq_solution", "qwq_response", "qwq_answer"):
        (reading,) = understand(
            {"problem": "3 · 4?", "qwq_reasoning": "Fours.", name: "It is 12.", "answer": "12"}
        )
        assert (reading.trace.answer, reading.trace.teacher, reading.trace.gold) == (
            "It is 12.",
            "qwq",
            "12",
        )


REFUSED = {
    "no reply": ({"messages": [ASKED, {"role": "assistant", "content": "b"}, ASKED]}, "`messages` ends without a reply"),
    "a completion without its question": (COMPLETION, "it has no question; its columns are `id`, `object`"),
    "a message alone": ({"role": "assistant", "reasoning_content": "t", "content": "a"}, "it has no question"),
    "a preference pair": ({"prompt": "q", "chosen": "a", "rejected": "b"}, "neither thinking nor an answer; its columns are `prompt`, `chosen`, `rejected`"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, {"role": "assistant", "content": "a"}]}, "content part of type `image_url`"),
    "a role": ({"messages": [ASKED, {"role": "narrator", "content": "a"}]}, "the role `narrator`"),
    "two replies": ({"messages": [ASKED, {"role": "assistant", "content": "a"}], "response": "b"}, "`messages` and `response` hold different replies"),
    "two thinkings": ({"messages": [ASKED, {"role": "assistant", "content": "<think>t</think>a"}], "reasoning": "u"}, "`messages` and `reasoning` hold different thinking"),
    "no question": ({"generations": ["a"], "answer": "b"}, "it has no question; its columns are `generations`, `answer`"),
    "rendered text": ({"text": "<|im_start|>user\nq<|im_end|>"}, "neither thinking nor an answer; its columns are `text`"),
    "empty": ({}, "it is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_refused_with_what_was_found(name, tmp_path) -> None:
    record, message = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        understand(record)
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError) as refused:
        list(read(path))
    assert refused.value.where == f"{path}:1"
    assert "--bad skip" in refused.value.hint


def test_unusual_columns_can_be_named() -> None:
    record = {
        "ask": "3 · 4?",
        "cot": "Fours.",
        "final": "It is 12.",
        "response": "no",
        "messages": [ASKED],
    }
    (reading,) = understand(record, {"question": "ask", "thinking": "cot", "answer": "final"})
    assert (reading.trace.question, reading.trace.thinking, reading.trace.answer) == ONE
    assert reading.columns == {"question": "ask", "thinking": "cot", "answer": "final"}
    with pytest.raises(ValueError, match="it has no column `c0t`; its columns are `ask`"):
        understand(record, {"thinking": "c0t"})
    with pytest.raises(UserError, match="a trace has no `cot`"):
        read(Path("x"), columns={"cot": "thinking"})


def texts(path: Path) -> list[str]:
    return [trace.answer for trace in read(path)]


def test_files_of_each_kind(tmp_path) -> None:
    rows = [{"question": f"{n}?", "response": f"<think>t</think>a{n}"} for n in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "b.json").write_text(lines)
    (tmp_path / "c.json").write_text(json.dumps(rows[0], indent=1))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    all_three = ["a0", "a1", "a2"]
    assert [texts(tmp_path / name) for name in ("a.json", "b.json", "c.json", "d.jsonl.gz")] == [all_three, all_three, ["a0"], all_three]  # fmt: skip
    assert texts(tmp_path) == [*all_three, *all_three, "a0", *all_three]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no file of traces"):
        texts(tmp_path / "empty")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-9])
    with pytest.raises(UserError, match="can't read"):
        texts(tmp_path / "e.jsonl.gz")
    (tmp_path / "a.json").write_text(json.dumps([rows[0], {"text": "x"}]))
    with pytest.raises(UserError) as error:
        texts(tmp_path / "a.json")
    assert error.value.where == f"{tmp_path / 'a.json'}[1]"


def test_parquet(tmp_path) -> None:
    polars = pytest.importorskip("polars")
    number = 2 * CHUNK + 5
    rows = [{**OPENR1, "uuid": f"u{n}"} for n in range(number)]
    (tmp_path / "data").mkdir()
    polars.DataFrame(rows[:3]).write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet")
    polars.DataFrame(rows[3:]).write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    assert [t.id for t in read(tmp_path)] == [f"u{n}/{k}" for n in range(number) for k in range(3)]
    assert [t.correct for t in read(tmp_path)][:3] == [True, False, None]
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(UserError, match="can't read"):
        list(read(tmp_path / "bad.parquet"))


def test_the_hub(tmp_path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*names, **more):
        asked.append((*names, more["split"], more["revision"]))
        one = datasets.Dataset.from_list([S1K_11])
        return (
            one
            if more["split"]
            else datasets.DatasetDict(train=one)
            if names[0] == "a/b"
            else {"x": one, "y": one}
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    assert [t.teacher for t in read(Path("a/b"))] == ["gemini", "deepseek"]
    assert len(list(read(Path("a/b/metadata:valid@v2")))) == 2
    assert asked == [("a/b", None, None, None), ("a/b", "metadata", "valid", "v2")]
    with pytest.raises(UserError, match="has the splits x, y") as error:
        list(read(Path("a/c")))
    assert error.value.hint == "name one: a/c:x"
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(UserError, match="there is no file a/b, and the hub says: division by zero"):
        list(read(Path("a/b")))
    with pytest.raises(UserError, match=r"can't read a/b\.jsonl"):
        list(read(Path("a/b.jsonl")))


def test_formats_are_counted(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (S1K, S1K_11, {"x": 1}, S1K_11)))
    traces = read(path, bad="skip")
    assert len(list(traces)) == 5
    assert traces.formats == {"named columns": 1, "a pair of columns per teacher": 4}
    assert traces.skipped == [
        f"{path}:3: it has neither thinking nor an answer; its columns are `x`"
    ]
    assert all(isinstance(reading, Understood) for reading in traces.understood())


def test_show_says_how_traces_are_read(ponder, write) -> None:
    write(
        "s1k.jsonl",
        json.dumps({**S1K_11, "deepseek_thinking_trajectory": "So. " * 40 + "\n\nDone."}) + "\n",
    )
    result = ponder("score", "s1k.jsonl", "--show", "3")
    assert result.exit_code == 0
    first, second = result.stdout.split("\n\n")
    assert first.startswith("trace 1, read as a pair of columns per teacher\n")
    for field, column, text in (
        ("question", "question", "3 · 4?"),
        ("thinking", "deepseek_thinking_trajectory", "(167 characters, 2 steps)"),
        ("answer", "deepseek_attempt", "\\boxed{12}"),
        ("gold", "solution", "12"),
        ("correct", "deepseek_grade", "True"),
    ):
        (line,) = [line for line in second.splitlines() if line.split()[:1] == [field]]
        assert column in line
        assert text in line
    assert "not read: `source_type`, `metadata`" in second
    assert not Path("s1k.scored.jsonl").exists()
    shown = json.loads(ponder("score", "s1k.jsonl", "--show", "1", "--json").stdout)
    assert shown[0]["columns"]["thinking"] == "gemini_thinking_trajectory"
    assert shown[0]["thinking"] == "Threes."
    refused = ponder("score", "s1k.jsonl")
    assert refused.exit_code == 2
    assert "no reward is named" in refused.stderr


def test_columns_are_named_on_the_command_line(ponder, write) -> None:
    write("mine.jsonl", json.dumps({"ask": "3 · 4?", "cot": "Fours.", "labels": [1]}) + "\n")
    refused = ponder("score", "mine.jsonl", "--reward", "oracle")
    assert refused.exit_code == 2
    assert "mine.jsonl:1: it has neither thinking nor an answer; its columns are `ask`, `cot`, `labels`" in refused.stderr  # fmt: skip
    assert "--column thinking=NAME" in refused.stderr
    fine = ponder(
        "score",
        "mine.jsonl",
        "--reward",
        "oracle",
        "--column",
        "question=ask",
        "--column",
        "thinking=cot",
    )
    assert fine.exit_code == 0
    assert "1  read as named columns" in fine.stderr
    assert ponder("score", "mine.jsonl", "--show", "1", "--column", "thinking").exit_code == 2
