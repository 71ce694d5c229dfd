"""Notes on the grades behind a study's numbers: whether a judge gave them, how often it errs, what
it cost, and whether the grader has changed since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ponder.core import Estimate, Judgement, Outcome
from ponder.core.capabilities import GRADER, JUDGED, Judged, RecordsGrader
from ponder.core.text import count


def grading_notes(names: Sequence[str], outcomes: Sequence[Outcome], currency: str) -> list[str]:
    """Return sentences about the grades of one model on one task; `names` are their labels."""
    task = outcomes[0].cell.task
    if not isinstance(task, RecordsGrader):
        return []
    name = " on ".join(names)
    notes = []
    graded = [outcome for outcome in outcomes if GRADER in outcome.details]
    outdated = [outcome for outcome in graded if outcome.details[GRADER] != task.grader_id()]
    if outdated:
        verb = "was" if len(outdated) == 1 else "were"
        attempts = f"{count(len(outdated), 'attempt')} {verb} graded"
        notes.append(
            f"{name}: the grader or its labels have changed since {attempts}; "
            "`ponder regrade` grades again."
        )
    judged = [outcome for outcome in outcomes if JUDGED in outcome.details]
    if judged and isinstance(task, Judged):
        judge = task.asks()
        judge_name = judge.title() if judge else "a judge"
        notes.append(f"{name}: {_judge_errors(judge_name, outcomes)} {_bill(judged, currency)}")
    return notes


def _judge_errors(judge: str, outcomes: Sequence[Outcome]) -> str:
    """Say how often a judge errs, and what accuracy becomes without its errors."""
    # these import NumPy
    from ponder.stats import judged as stats
    from ponder.stats.accuracy import accuracy

    data = stats.judged(outcomes)
    if not data.labels:
        return (
            f"graded by the judge {judge}, which is unchecked: nobody has labelled any of these "
            "replies, so its errors are in every number below."
        )
    labels = count(data.labels, "labelled reply")
    estimate = stats.corrected(data)
    if estimate is None:
        return (
            f"graded by the judge {judge}, which is unchecked: {labels} at "
            f"{count(data.labelled_problems(), 'problem')} are too few to correct for its errors "
            f"({stats.FEWEST} problems at least)."
        )
    sensitivity, false_positives = stats.agreement(data)
    raw = accuracy(data.right, data.problem)
    sizes = {outcome.size for outcome in outcomes}
    over = " over all sizes" if len(sizes) > 1 else ""
    return (
        f"of {labels}, the judge {judge} calls {_percent(sensitivity)} of the right ones right, "
        f"and {_percent(false_positives)} of the wrong ones. Corrected for that, accuracy{over} is "
        f"{_percent(estimate)}, and {_percent(raw)} by the judge alone. Only the figure Accuracy "
        "is corrected; others show what the judge says."
    )


def _percent(estimate: Estimate) -> str:
    if math.isnan(estimate.value):  # no labelled reply was right, or none was wrong
        return "an unknown fraction"
    return f"{estimate.value:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


def _bill(outcomes: Sequence[Outcome], currency: str) -> str:
    """Say what a judge's calls cost, which no figure counts."""
    prompt, completion, money = tuple(Judgement().bill())
    tokens = 0
    cost = 0.0
    for outcome in outcomes:
        tokens += outcome.details.get(prompt, 0) + outcome.details.get(completion, 0)
        cost += outcome.details.get(money, 0.0)
    price = f" and {cost:.4g} {currency}".rstrip() if cost else ""
    return f"The judge took {tokens:,} tokens{price}, billed apart: no figure counts them."
