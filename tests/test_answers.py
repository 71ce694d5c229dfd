"""Which answers are read from a model's text, and when two of them are equal."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ponder.core import plugins
from ponder.core.capabilities import LONG_ANSWER, grades_slowly
from ponder.tasks import reading
from ponder.tasks.tents.grid_text import last_grid


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("just this", "", "just this"),
        ("<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),  # the prompt opened the tag
        ("<think>never ends", "never ends", ""),
        ("<think>a<think>b</think>c</think>d", "abc", "d"),
        ("<think>a</think>b<think>c", "ac", "b"),
        ("<thinking>a</thinking>\n\nb", "a", "b"),
        ("</think></think>x", "", "x"),
        ("", "", ""),
    ],
)
def test_split_thinking(text, thinking, answer) -> None:
    assert reading.split_thinking(text) == (thinking, answer)


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("[[0, 1], [2, 3]]", [[0, 1], [2, 3]]),
        ("Sure:\n```json\n[[0, 1],\n [2, 3]]\n```\nDone [sic].", [[0, 1], [2, 3]]),
        ("first [[1]] then [[2]]", [[2]]),
        ("an open [ bracket, then [[1]]", [[1]]),
        ("[[1, 2], [3, 4]", None),
        ("[[1, 2],\n [3, 4]", [[1, 2], [3, 4]]),
        ("[[1, 2],]", None),
        ("Row by row:\n\n[0, 1]\n[2, 3]\n\nDone.", [[0, 1], [2, 3]]),
        ("```\n0 1 2\n3 0 1\n```", [[0, 1, 2], [3, 0, 1]]),
        ("| 0 | 1 |\n|---|---|\n| 2 | 3 |", [[0, 1], [2, 3]]),
        ("[[0, 0], [0, 0]]\nbecomes\n0 1\n2 3", [[0, 1], [2, 3]]),
        ("0 1\n2 3\nbecomes [[1, 1], [1, 1]]", [[1, 1], [1, 1]]),
        ("[[0, 1], [2, 3]]\n1 0\n3 2 1", [[0, 1], [2, 3]]),  # no grid: its rows differ in length
        ("[[0, 1, 2], [2, 3, 0]]\nTents at:\n1 3\n2 1", [[0, 1, 2], [2, 3, 0]]),  # of another shape
        ("0 1\n2 3\n\nTents at:\n- (1, 2)\n- (2, 1)", [[0, 1], [2, 3]]),
        ("one row\n0 1 2", None),
        ("nothing", None),
        ("[1, 2]", None),
        ("[[[1]]]", [[[1]]]),
    ],
)
def test_last_grid(text, grid) -> None:
    assert last_grid(text) == grid


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>3</answer> no, <answer> 4 </answer>", "4"),
        ("<answer>4</answer> as in <answer></answer>", "4"),
        ("<ANSWER>4</Answer>", "4"),
        ("< answer >4</ answer >", "4"),
        ("<answer>4", "4"),
        ("<answer>4\n\nI hope this helps.", "4"),
        ("<answer>a b\nc d</answer>", "a b\nc d"),
        ("<answer>4<answer>", "4"),
        ("I write it between <answer> and </answer>: \\boxed{4}", "4"),
        ("<answer>...</answer>", None),
        ("\\boxed{4} is it, so \\boxed{}", "4"),
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("The answer is 42.", "42"),
        ("**Answer:** 42", "42"),
        ("We add.\n\n42\n", "42"),
        ("The final answer is:\n\\[\n42\n\\]", "42"),
        ("### Answer\n**Paris**", "Paris"),
        ("The answer to this question is Paris.\n\nIt has two million inhabitants.", "Paris"),
        ("", None),
        ("\n \n", None),
        ("I'm sorry, I can't tell.", None),
        ("It is a fine city. Would you like a hint?", None),
    ],
)
def test_final(text, final) -> None:
    assert reading.final(text) == final


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42), ("-7", -7), ("−7", -7), ("1,234,567", 1_234_567), ("0.5", Fraction(1, 2)), ("3/4", Fraction(3, 4)),
        ("$12$", 12), ("12,34", None), ("1e5", None), ("4 apples", None), ("", None), ("1/0", None), ("9" * 2000, None),
        ("nan", None), ("٣", 3),
    ],
)  # fmt: skip
def test_number(text, number) -> None:
    assert reading.number(text) == number


def test_same() -> None:
    assert reading.same("27.0", "27")
    assert reading.same("  New  York ", "new york")
    assert not reading.same("27", "28")
    assert not reading.same("9.11", "9.9")


@pytest.mark.parametrize(
    "text",
    [
        "<answer>9</answer>", "<answer>9", "<Answer>9</ANSWER>", "<answer>**9**</answer>", "<answer>\\boxed{9}</answer>",
        "\\boxed{9}", "$\\boxed{9}$", "<answer>\\(9\\)</answer>", "\\(9\\)", "$9$", "9.", "**9**", "The sum is 9.", "9.0",
        "4 + 5 = 9", "4 + 5 = 9.", "So:\n\n4 + 5 = **9**", "\\[ 4 + 5 = 9 \\]", "<answer>4 + 5 = 9</answer>", "Sum: 9",
        "<answer>9</answer>\n<answer></answer>", "<answer>The sum is 9.</answer>", "<answer> 9 points </answer>",
        "The answer is 9. Let me know if you need 2 more examples!", "Adding 5 to 4 gives us 9.\n\nI hope this helps!",
        "**Answer:** 9\n\nCheck: 9 - 5 = 4", "The answer is 4.\nWait, I forgot one.\nThe answer is 9.", "final answer: 4 + 5 = 9",
        "Step 1: 4\nStep 2: 9", "The total is now **9**", "1. 2 + 2 = 4\n2. 4 + 5 = 9", "We get 9", "The sum of 4 and 5 is 9.",
        "Therefore, the final number is 9.", "So far the running sum is 9 (nine).", "= 9", "x = 9",
    ],
)  # fmt: skip
def test_what_a_person_reads_as_nine(text: str) -> None:
    assert reading.final_number(text) == 9


@pytest.mark.parametrize(
    "text",
    [
        "", "<answer></answer>", "<answer>N</answer>", "The answer is 9 or 10.", "The answer is not 9.", "It is about 9.",
        "The sum is less than 9.", "Is it 9?", "There are 9 numbers to add, so this will take a while.", "I can't.",
        "The answer is unknown. I tried 9 times.", "<answer>9 or 10</answer>", "4 + 5", "9 apples and 3 pears are left",
        "<answer>4 + 5</answer>", "If 4 + x = 13, then x may be 9, 10 or 11.",
    ],
)  # fmt: skip
def test_what_states_no_number(text: str) -> None:
    assert reading.final_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"), [("It is -9.", -9), ("= − 9", -9), ("5 - 14 = -9", -9), ("14 -5 = 9", 9)]
)
def test_signs(text: str, number: int) -> None:
    assert reading.final_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("<answer>minus 9</answer>", -9),
        ("<answer>–9</answer>", -9),
        ("<answer>- 9</answer>", -9),
        ("The result is negative 9.", -9),
        ("31 minus 7", None),
        ("pages 5–9", None),
        ("<answer>9</answer>\n\nWait, that's wrong. 4 + 6 = 10.", 10),
        ("<answer>9</answer>\n\nActually, it is 10.", 10),
        ("<answer>9</answer>\n\nActually, I like this puzzle.", 9),
        ("The answer is 9.\n\nHold on. I forgot to carry. The total is 109.", 109),
        ("\\boxed{9} or \\boxed{10}", None),
        ("\\boxed{9}, $\\boxed{10}$", None),
        ("\\boxed{9}. Then \\boxed{10}", 10),
        ("<answer>x = 9, y = 10</answer>", None),
        ("<answer>> 9</answer>", None),
        ("<answer>~9</answer>", None),
        ("<answer>almost 9</answer>", None),
        ("<answer>9 thousand</answer>", 9000),
        ("<answer>9:30</answer>", None),
        ("\\boxed{\\sqrt{9}}", None),
        ("The answer is 78, because 31 - 7 = 24 and 24 + 54 = 80.", 78),
        ("Answer:\n31 - 7 = 24\n24 + 54 = 78", 78),
        ("Answer: 31 - 7 + 54\n= 24 + 54\n= 78", 78),
        ("31 - 7 = **24**. Then 24 + 54 = 78.", 78),
        ("We need 3 steps.", None),
        ("The answer is a 2-digit number.", None),
        ("Next, add 54", None),
    ],
)
def test_what_else_could_be_misread(text: str, number: int | None) -> None:
    assert reading.final_number(text) == number


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Paris, I thought at first. But the capital is Lyon.", "Paris"),
        ("Yes, at first glance. The answer is no.", "yes"),
        ("True. Hmm, let me reconsider. It is false.", "True"),
        ("Blue, red, or green would all work.", "blue"),
        ("A, B", "A"),
        ("<answer>Lyon (Paris)</answer>", "Paris"),
    ],
)
def test_no_reading_is_what_the_reply_only_mentions(text: str, gold: str) -> None:
    assert not any(reading.same(answer, gold) for answer in reading.readings(text, gold))


CAPITAL = "What is the capital of Australia?"
COLOURS = "Which colours are in the flag?"
SKY = "Is the sky blue?"


@pytest.mark.parametrize(
    ("reply", "gold", "question", "right"),
    [
        ("<answer>Canberra</answer> Wait, that's wrong. It is 17.", "Canberra", CAPITAL, False),
        ("<answer>Canberra</answer> Wait, it's Sydney.", "Canberra", CAPITAL, False),
        ("<answer>Sydney</answer> Wait, that's wrong. It is Canberra.", "Canberra", CAPITAL, True),
        ("<answer>red, blue</answer> Wait. They are red and green.", "red, blue", COLOURS, False),
        ("<answer>yes</answer> Wait, that's wrong. It is no.", "yes", SKY, False),
        # nothing else is given as the answer
        ("<answer>Canberra</answer> Sorry for the long explanation.", "Canberra", CAPITAL, True),
        ("<answer>Canberra</answer> Edit: fixed a typo.", "Canberra", CAPITAL, True),
        ("<answer>yes</answer> It would be wrong to say it is not.", "yes", SKY, True),
    ],
)
def test_a_withdrawn_answer_is_read_only_if_no_other_replaces_it(
    reply: str, gold: str, question: str, right: bool
) -> None:
    answer = reading.read(reply, gold, question)
    assert answer is not None
    assert answer.right == right


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The reversed word is: olleh. Explanation: h-e-l-l-o", "olleh"),
        ("Yes, the graph has a cycle.", "yes"),
        ("The symbol is Au, from aurum. It is a metal.", "Au"),
        ("渥太华 (Ottawa)", "Ottawa"),
    ],
)
def test_readings_of_an_opening(text: str, gold: str) -> None:
    assert any(reading.same(answer, gold) for answer in reading.readings(text, gold))


def test_the_end_of_a_ratio_or_of_two_statements_is_no_expression() -> None:
    assert "10" not in reading.expressions("ratio 9: 10")
    assert "10" not in reading.expressions("y is 3, x is 10")
    assert "10" in reading.expressions("the length is 10")


def test_readings_of_texts_and_numbers() -> None:
    assert "Paris" in reading.readings("The capital of France is **Paris**.", "Paris")
    assert reading.readings("<answer>**Paris**</answer>", "Paris")[0] == "Paris"
    assert reading.readings("The price is $7.50.", "7.5")[0] == "7.5"
    assert reading.readings("\\boxed{1/3}", "1/3")[0] == "1/3"
    assert reading.readings("No idea.", "7.5") == []
    assert reading.readings("<answer></answer>", "Paris") == []
    said = "<answer>Zoey is a knave, and Riley is a knight</answer>"
    assert reading.readings(said, "Zoey is a knight, and Riley is a knight")[0] == said[8:-9]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("90°", "90^\\circ"), ("√3", "\\sqrt{3}"), ("2π", "2\\pi"), ("x²", "x^2"), ("3·4", "12")],
)
def test_symbols_mean_what_latex_calls_them(answer: str, gold: str) -> None:
    pytest.importorskip("math_verify")
    assert reading.differs(answer, gold) == ""
    assert reading.differs(f"{answer}+1", gold) == "wrong answer"


def test_only_a_long_answer_is_graded_slowly_unless_the_task_says_so() -> None:
    quick = plugins.load("tasks", "chain_sum")()
    assert not grades_slowly(quick, ["17"])
    assert grades_slowly(quick, ["17" * LONG_ANSWER])
