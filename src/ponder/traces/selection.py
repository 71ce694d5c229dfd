"""Selects the traces to train on: ranked by a reward, without duplicates and without evaluation problems.

    from ponder.traces.selection import Choice, Scored, select

    selection = select([Scored(trace, score), …], Choice(top=1000, right=True, without=("math500",)))
    selection.kept[0].index, selection.kept[0].reason
    selection.counts  # {"wrong": 412, "near-duplicate": 96, "beyond the top 1,000": 57_492}

After ReasonFlux-PRM (arXiv 2506.18896), which keeps the best 1,000 of 59,000. A reward may distinguish teachers and
lengths before it distinguishes good from bad, so traces can be ranked per teacher (`per_teacher`), per problem
(`per_problem`) and among traces of similar length (`match_length`). Most rewards saturate: nearly all right traces
score almost the same, and what is left is noise or style. So scores that differ by at most `tolerance` are ties, which
go by the seed. The baselines are random, longest and shortest, at an equal number of tokens (`budget_tokens`).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Problem, UserError, digest, plugins, seed_from
from ponder.tasks.reading import differs, final
from ponder.traces import Trace
from ponder.traces.contamination import EvaluationSet, problem_id, problems
from ponder.traces.duplicates import Fingerprint, FingerprintIndex, fingerprint
from ponder.traces.ngrams import normalized

By: TypeAlias = Literal["reward", "random", "longest", "shortest", "all"]
REACH = 2500  # neighbours in length on either side: enough to tell the best in a thousand, and a bound on the time


@dataclass(frozen=True)
class Choice:
    """Which traces to keep; by default all but duplicates, the best first."""

    by: By = "reward"  # order: highest score, random, longest, shortest, or all as they come
    top: int | None = None  # keep at most this many
    threshold: float | None = None  # keep only traces with at least this score
    budget_tokens: int | None = None  # keep the first traces, up to this many tokens in total
    per_topic: int | None = None  # keep at most this many per topic
    per_teacher: int | None = None  # keep at most this many per teacher, each ranked among its own traces
    teacher: str = ""  # keep only the traces of this teacher
    per_problem: bool = False  # keep one trace per problem, the first in the order of `by`; problems in random order
    match_length: bool = False  # rank each trace among traces of similar length
    tolerance: float = 0.0  # scores that differ by at most this are ties, broken at random
    right: bool = False  # keep only traces with a correct answer
    without: tuple[str, ...] = ()  # evaluation problems: TASK, TASK:SIZE, TASK:SIZE:SEED or a JSONL file of questions
    min_run: int = 8  # the shortest run of shared words that counts as overlap with an evaluation problem
    overlap: float = 0.5  # drop a trace whose question shares at least this fraction of an evaluation problem's words
    keep_duplicates: bool = False
    alike: float = 0.8  # Jaccard similarity from which two traces are near-duplicates
    seed: int = 0  # of a random order, and of ties

    def __post_init__(self) -> None:
        for name in ("top", "budget_tokens", "per_topic", "per_teacher", "min_run"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"{name} must be at least 1, not {number}")
        for name in ("overlap", "alike"):
            if not 0 < (number := getattr(self, name)) <= 1:
                raise UserError(f"{name} must be above 0 and at most 1, not {number}")
        if not 0 <= self.tolerance < math.inf:
            raise UserError(f"tolerance is a difference of two scores, not {self.tolerance}", hint="tolerance = 0.1")
        if self.match_length and self.by != "reward":
            raise UserError("match_length ranks by reward", hint="leave out match_length, or leave out `by`")

    @property
    def needs_scores(self) -> bool:
        return self.by == "reward" or self.threshold is not None


@dataclass(frozen=True, slots=True)
class Scored:
    """A trace and its total score; None if it has none."""

    trace: Trace
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A trace that was kept, and why."""

    index: int  # in the input, from 0
    id: str
    rank: int  # among the kept traces, from 1
    score: float | None
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trace that was dropped, and why."""

    index: int
    id: str
    reason: str
    of: str = ""  # the id of the kept trace that it duplicates


@dataclass(frozen=True)
class Selection:
    """The result: what was kept, what was dropped, and how score and length are related."""

    kept: tuple[Kept, ...]  # the best first
    dropped: tuple[Dropped, ...]
    counted_by: Literal["traces", "estimate"]  # where the token counts are from
    tokens_before: float  # mean over the traces that were ranked
    tied: int = 0  # traces ranked by score that tie with the last one kept
    # Rank correlation with length over the traces that were ranked: of the score, and of what they were ranked by.
    with_length: tuple[float, float] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many traces were dropped for each reason."""
        return Counter(dropped.reason for dropped in self.dropped)

    @property
    def tokens(self) -> int:
        return sum(kept.tokens for kept in self.kept)

    @property
    def scores(self) -> tuple[float, float] | None:
        """The lowest and the highest score of the kept traces; None if they have none."""
        known = [kept.score for kept in self.kept if kept.score is not None]
        return (min(known), max(known)) if known else None

    def summary(self) -> dict[str, Any]:
        return {
            "kept": len(self.kept),
            "dropped": dict(self.counts),
            "tokens": self.tokens,
            "mean_tokens": round(self.tokens / max(1, len(self.kept)), 1),
            "mean_tokens_before": round(self.tokens_before, 1),
            "counted_by": self.counted_by,
            "scores": self.scores,
            "tied": self.tied,
            "score_with_length": self.with_length and self.with_length[0],
            "rank_with_length": self.with_length and self.with_length[1],
        }

    def table(self) -> str:
        """The summary as text, one fact per line."""
        copies: dict[str, list[str]] = defaultdict(list)
        for dropped in self.dropped:
            if dropped.of:
                copies[dropped.reason].append(f"{dropped.id} of {dropped.of}")
        rows = [f"{len(self.kept):10,}  kept"]
        for why, number in self.counts.most_common():
            examples = copies[why][:3] + ["…"] * (len(copies[why]) > 3)
            rows.append(f"{number:10,}  dropped: {why}" + (f" ({', '.join(examples)})" if examples else ""))
        if self.kept:
            estimated = " (estimated: not every trace has `tokens`)" if self.counted_by == "estimate" else ""
            mean = f"{self.tokens / len(self.kept):,.0f} per kept trace, {self.tokens_before:,.0f} per ranked trace"
            rows.append(f"{self.tokens:10,}  tokens, {mean}{estimated}")
        if self.tied > 1 and self.scores:
            low, high = self.scores
            rows.append(f"{self.tied:10,}  traces tie with the last one kept; kept scores: {low:.4g} to {high:.4g}")
        if self.kept and self.with_length:
            score, rank = self.with_length
            matched = f", {rank:.2f} after matching lengths" if rank != score else ""
            rows.append(f"{score:10.2f}  rank correlation of score and length{matched}")
        return "\n".join(rows)


@dataclass(slots=True)
class _Candidate:
    """What selection keeps in memory of a trace: no text."""

    index: int
    id: str
    teacher: str
    topic: str
    score: float | None
    tokens: int | None  # as given in the trace
    length: float  # tokens: as given, if all traces give them; else an estimate
    problem: bytes
    lot: int  # drawn from the seed and the text: it breaks ties
    why: str  # why it is dropped before ranking; "" if it is ranked
    fingerprint: Fingerprint | None
    worth: float = 0.0  # the sort key, highest first


def select(
    traces: Iterable[Scored], how: Choice, asked: Iterable[Problem] = (), folder: Path | None = None
) -> Selection:
    """Which traces to keep, and why the others are dropped.

    `asked` are evaluation problems in addition to `how.without`, whose files are relative to `folder`.
    """
    selector = Selector(how, asked, folder)
    for scored in traces:
        selector.add(scored)
    return selector.selection()


class Selector:
    """Takes traces one at a time, keeps no text, and then selects."""

    def __init__(self, how: Choice, asked: Iterable[Problem] = (), folder: Path | None = None) -> None:
        named = (problem for name in how.without for problem in problems(name, folder or Path()))
        self.how = how
        self._evaluation = EvaluationSet([*named, *asked], how.min_run, how.overlap)
        self._candidates: list[_Candidate] = []

    def add(self, scored: Scored) -> None:
        self._candidates.append(_candidate(len(self._candidates), scored, self.how, self._evaluation))

    def selection(self) -> Selection:
        how, candidates = self.how, self._candidates
        _check(candidates, how)
        counted = all(c.tokens is not None for c in candidates)
        for candidate in candidates if counted else ():
            candidate.length = float(candidate.tokens or 0)
        ranked = [candidate for candidate in candidates if not candidate.why]
        _rank(ranked, how)
        before = [Dropped(c.index, c.id, c.why) for c in candidates if c.why]
        kept, after = _keep(ranked, how)
        lengths, scores = [c.length for c in ranked], [c.score or 0.0 for c in ranked]
        worths = {c.index: c.worth for c in ranked}
        last = min((worths[one.index] for one in kept), default=math.nan)
        with_length = rank_correlation(scores, lengths), rank_correlation([c.worth for c in ranked], lengths)
        return Selection(
            tuple(kept),
            (*before, *after),
            "traces" if counted else "estimate",
            sum(lengths) / max(1, len(lengths)),
            sum(worth == last for worth in worths.values()) if how.by == "reward" else 0,
            with_length if how.by == "reward" else None,
        )


def _candidate(index: int, scored: Scored, how: Choice, evaluation: EvaluationSet) -> _Candidate:
    trace, score = scored.trace, None if scored.score is None or math.isnan(scored.score) else scored.score
    if how.teacher and trace.teacher != how.teacher:
        why = "another teacher"
    elif how.needs_scores and score is None:
        why = "unscored"
    elif how.threshold is not None and score is not None and score < how.threshold:
        why = "below the threshold"
    elif how.right and (wrong := _wrong(trace)):
        why = wrong
    else:
        why = "in the evaluation set" if evaluation.contains(trace) else ""
    # Four bytes of UTF-8 are about one token, in English as in Chinese.
    length = sum(len(text.encode("utf-8", "surrogatepass")) for text in (trace.thinking, trace.answer)) / 4
    mark = None if why or how.keep_duplicates else fingerprint(trace)
    problem = digest(problem_id(trace) or normalized(trace.question)) if how.per_problem else b""
    # Of the text, so that it doesn't depend on the order of the input, and samples with one id have lots of their own.
    lot = seed_from(how.seed, trace.id, trace.thinking, trace.answer)
    facts = (trace.id, trace.teacher, trace.topic, score, trace.tokens, length, problem, lot)
    return _Candidate(index, *facts, why, mark)


def _wrong(trace: Trace) -> str:
    """Why a trace doesn't count as correct; "" if it does."""
    if trace.correct is not None:
        return "" if trace.correct else "wrong"
    gold = str(trace.gold) if isinstance(trace.gold, str | int | float) else ""
    if "\\boxed{" in gold or "<answer>" in gold:  # a whole solution
        gold = final(gold) or ""
    if not gold.strip():
        return "no reference answer to check it against"
    answer = final(trace.answer)
    return "wrong" if answer is None or differs(answer, gold) else ""


def _check(candidates: Sequence[_Candidate], how: Choice) -> None:
    """Raise `UserError` if the traces lack what the choice needs."""
    if not candidates:
        raise UserError("there are no traces")
    if how.needs_scores and all(c.score is None for c in candidates):
        raise UserError("no trace has a score", hint="ponder score FILE --reward NAME; or --by random")
    teachers = {c.teacher for c in candidates} - {""}
    if how.teacher and how.teacher not in teachers:
        hint = plugins.nearest(how.teacher, teachers) if teachers else "no trace names its teacher"
        raise UserError(f"no trace is by the teacher `{how.teacher}`", hint=hint)
    if how.per_teacher and not teachers:
        raise UserError("no trace names its teacher", hint="per_teacher needs the key `teacher` in each record")
    if how.per_topic and not any(c.topic for c in candidates):
        raise UserError("no trace has a topic", hint="per_topic needs the key `topic` in each record")


def _rank(ranked: list[_Candidate], how: Choice) -> None:
    """Sort, the best first; ties at random, by the seed."""
    shuffled = random.Random(how.seed)
    scores = ties([c.score or 0.0 for c in ranked], how.tolerance)
    for c, score in zip(ranked, scores, strict=True):
        worth = {"reward": score, "longest": c.length, "shortest": -c.length, "all": -float(c.index)}
        c.worth = shuffled.random() if how.by == "random" else worth[how.by]
    if how.match_length:
        groups: dict[str, list[_Candidate]] = defaultdict(list)
        for c in ranked:
            groups[c.teacher if how.per_teacher else ""].append(c)
        for group in groups.values():
            ranks = matched([c.worth for c in group], [c.length for c in group])
            for c, rank in zip(group, ranks, strict=True):
                c.worth = rank
    order = {c.problem: seed_from(how.seed, c.problem.hex()) for c in ranked}
    ranked.sort(key=lambda c: (order[c.problem], -c.worth, c.lot if how.by == "reward" else c.id, c.index))


def ties(scores: Sequence[float], tolerance: float) -> list[float]:
    """For each score the best one that it ties with: from the top, all within the tolerance of the best are one tie."""
    best, tied = math.inf, dict[float, float]()
    for score in sorted(set(scores), reverse=True):
        best = best if best - score <= tolerance else score
        tied[score] = best
    return [tied[score] for score in scores]


def _keep(ranked: Sequence[_Candidate], how: Choice) -> tuple[list[Kept], list[Dropped]]:
    """Go through the ranking; drop duplicates of a better trace, and what is beyond a limit."""
    kept, dropped = list[Kept](), list[Dropped]()
    index, spent, full = FingerprintIndex(how.alike), 0.0, False
    limits = {"topic": how.per_topic, "teacher": how.per_teacher, "problem": 1 if how.per_problem else None}
    counts = {name: Counter[Any]() for name, most in limits.items() if most}
    for position, c in enumerate(ranked, 1):
        reached = (name for name, count in counts.items() if count[getattr(c, name)] == limits[name])
        why, of = "", ""
        if len(kept) == how.top:
            why = f"beyond the top {how.top:,}"
        elif full:
            why = "beyond the token budget"
        elif name := next(reached, None):
            why = f"beyond {limits[name]:,} of its {name}"
        elif c.fingerprint and (copy := index.nearest(c.fingerprint)):
            number, exact = copy
            why, of = "duplicate" if exact else "near-duplicate", kept[number].id
        elif how.budget_tokens is not None and spent + c.length > how.budget_tokens:
            why, full = "beyond the token budget", True
        if why:
            dropped.append(Dropped(c.index, c.id, why, of))
            continue
        if c.fingerprint:
            index.add(c.fingerprint)
        spent += c.length
        for name, count in counts.items():
            count[getattr(c, name)] += 1
        reason = _reason(c, how, position, len(ranked))
        kept.append(Kept(c.index, c.id, len(kept) + 1, c.score, round(c.length), reason))
    return kept, dropped


def _reason(c: _Candidate, how: Choice, position: int, of: int) -> str:
    if how.per_problem:
        first = {"reward": "scores highest", "random": "is drawn", "all": "comes first"}.get(how.by, f"is {how.by}")
        return f"{first} of its problem's traces"
    if how.match_length:
        return f"scores above {c.worth:.1%} of the traces of similar length"
    return {
        "reward": f"score ranks {position:,} of {of:,}",
        "random": f"drawn {position:,} of {of:,} with seed {how.seed}",
        "longest": f"{position:,} of {of:,} by length, longest first",
        "shortest": f"{position:,} of {of:,} by length, shortest first",
        "all": "all traces are kept",
    }[how.by]


def matched(scores: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """For each trace, the fraction of the traces nearest in length that score lower; a tie counts half.

    As many neighbours are longer as are shorter, a tenth of all traces together. So however the score depends on
    length, even if it is the length, traces of all lengths are equally likely to rank above most of their neighbours.
    No curve is fitted, since none would follow every reward.
    """
    order = sorted(range(len(scores)), key=lambda n: lengths[n])
    reach = min(REACH, max(1, len(order) // 20))
    near, start, stop = list[float](), 0, 0
    ranks = [0.0] * len(order)
    for at, n in enumerate(order):
        half = min(reach, at, len(order) - 1 - at)
        while stop <= at + half:
            insort(near, scores[order[stop]])
            stop += 1
        while start < at - half:
            del near[bisect_left(near, scores[order[start]])]
            start += 1
        lower, upper = bisect_left(near, scores[n]), bisect_right(near, scores[n])
        ranks[n] = (lower + upper) / 2 / len(near)
    return ranks


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation, with mean ranks for ties; 0 if either doesn't vary."""
    ranks = np.array([_ranks(left), _ranks(right)])
    if len(left) < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, which, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[which]
    return ranks
