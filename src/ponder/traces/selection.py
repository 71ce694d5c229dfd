"""Selects the traces to train on: the best by a reward, no duplicates, no evaluation problems.

    from ponder.traces.selection import Choice, Scored, select

    choice = Choice(top=1000, right=True, without=("math500",))
    selection = select([Scored(trace, score), …], choice)
    selection.kept[0].index, selection.kept[0].reason
    selection.counts  # {"wrong": 412, "near-duplicate": 96, "beyond the top 1,000": 57_492}

After ReasonFlux-PRM (arXiv 2506.18896), which keeps the best 1,000 of 59,000. A reward may
distinguish teachers and lengths before it distinguishes good from bad, so traces can be ranked per
teacher (`per_teacher`), per problem (`per_problem`) and among traces of similar length
(`match_length`). Most rewards saturate: nearly all right traces score almost the same, and what is
left is noise or style. So scores that differ by at most `tolerance` are ties, which go by the seed.
The baselines are random, longest and shortest, at an equal number of tokens (`budget_tokens`).
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

# Neighbours in length on either side: enough to tell the best in a thousand, and a bound on the
# time.
REACH = 2500
By: TypeAlias = Literal["reward", "random", "longest", "shortest", "all"]


@dataclass(frozen=True)
class Choice:
    """Which traces to keep; by default all but duplicates, the best first."""

    by: By = "reward"  # order: highest score, random, longest, shortest, or all as they come
    top: int | None = None  # keep at most this many
    threshold: float | None = None  # keep only traces with at least this score
    budget_tokens: int | None = None  # keep the first traces, up to this many tokens in total
    per_topic: int | None = None  # keep at most this many per topic
    per_teacher: int | None = None  # keep at most this many per teacher, ranked separately
    teacher: str = ""  # keep only the traces of this teacher
    # Keep one trace per problem, the first in the order of `by`; problems in random order.
    per_problem: bool = False
    match_length: bool = False  # rank each trace among traces of similar length
    tolerance: float = 0.0  # scores that differ by at most this are ties, broken at random
    right: bool = False  # keep only traces with a correct answer
    # Evaluation problems: TASK, TASK:SIZE, TASK:SIZE:SEED or a JSONL file of questions.
    without: tuple[str, ...] = ()
    min_run: int = 8  # the shortest run of words shared with an evaluation problem that counts
    # Drop a trace whose question shares at least this fraction of an evaluation problem's words.
    overlap: float = 0.5
    keep_duplicates: bool = False
    alike: float = 0.8  # Jaccard similarity from which two traces are near-duplicates
    seed: int = 0  # of a random order, and of ties

    def __post_init__(self) -> None:
        for name in ("top", "budget_tokens", "per_topic", "per_teacher", "min_run"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UserError(f"{name} must be at least 1, not {number}")
        for name in ("overlap", "alike"):
            fraction = getattr(self, name)
            if not 0 < fraction <= 1:
                raise UserError(f"{name} must be above 0 and at most 1, not {fraction}")
        if not 0 <= self.tolerance < math.inf:
            raise UserError(
                f"tolerance is a difference of two scores, not {self.tolerance}",
                hint="tolerance = 0.1",
            )
        if self.match_length and self.by != "reward":
            raise UserError(
                "match_length ranks by reward", hint="leave out match_length, or leave out `by`"
            )

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
    # Rank correlation with length over the traces that were ranked: of the score, and of what they
    # were ranked by.
    with_length: tuple[float, float] | None = None

    @property
    def counts(self) -> Counter[str]:
        """Count the dropped traces by reason."""
        return Counter(dropped.reason for dropped in self.dropped)

    @property
    def tokens(self) -> int:
        return sum(kept.tokens for kept in self.kept)

    @property
    def scores(self) -> tuple[float, float] | None:
        """Return the lowest and the highest score of the kept traces; None if they have none."""
        scores = [kept.score for kept in self.kept if kept.score is not None]
        if not scores:
            return None
        return min(scores), max(scores)

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
        """Return the summary as text, one fact per line."""
        copies: dict[str, list[str]] = defaultdict(list)
        for dropped in self.dropped:
            if dropped.of:
                copies[dropped.reason].append(f"{dropped.id} of {dropped.of}")
        rows = [f"{len(self.kept):10,}  kept"]
        for why, number in self.counts.most_common():
            row = f"{number:10,}  dropped: {why}"
            examples = copies[why][:3]
            if len(copies[why]) > 3:
                examples.append("…")
            if examples:
                row += f" ({', '.join(examples)})"
            rows.append(row)
        if self.kept:
            mean = self.tokens / len(self.kept)
            row = (
                f"{self.tokens:10,}  tokens, {mean:,.0f} per kept trace,"
                f" {self.tokens_before:,.0f} per ranked trace"
            )
            if self.counted_by == "estimate":
                row += " (estimated: not every trace has `tokens`)"
            rows.append(row)
        if self.tied > 1 and self.scores:
            low, high = self.scores
            rows.append(
                f"{self.tied:10,}  traces tie with the last one kept; kept scores: {low:.4g} to"
                f" {high:.4g}"
            )
        if self.kept and self.with_length:
            score, rank = self.with_length
            row = f"{score:10.2f}  rank correlation of score and length"
            if rank != score:
                row += f", {rank:.2f} after matching lengths"
            rows.append(row)
        return "\n".join(rows)


@dataclass(slots=True)
class _Candidate:
    """What selection keeps in memory of a trace: no text."""

    index: int
    id: str
    teacher: str
    topic: str
    score: float | None
    tokens: int | None  # as counted in the trace
    length: float  # in tokens: as counted, if all traces have their count; else an estimate
    problem: bytes
    lot: int  # hashed from the seed and the text: it breaks ties
    why: str  # why it is dropped before ranking; "" if it is ranked
    fingerprint: Fingerprint | None
    worth: float = 0.0  # the sort key, highest first


def select(
    traces: Iterable[Scored], how: Choice, asked: Iterable[Problem] = (), folder: Path | None = None
) -> Selection:
    """Decide which traces to keep, and why the others are dropped.

    `asked` are evaluation problems in addition to `how.without`, whose files are relative to
    `folder`.
    """
    selector = Selector(how, asked, folder)
    for scored in traces:
        selector.add(scored)
    return selector.selection()


class Selector:
    """Takes traces one at a time, keeps no text, and then selects."""

    def __init__(
        self, how: Choice, asked: Iterable[Problem] = (), folder: Path | None = None
    ) -> None:
        evaluation_problems = list[Problem]()
        for name in how.without:
            evaluation_problems += problems(name, folder or Path())
        evaluation_problems += asked
        self.how = how
        self._evaluation = EvaluationSet(evaluation_problems, how.min_run, how.overlap)
        self._candidates: list[_Candidate] = []

    def add(self, scored: Scored) -> None:
        self._candidates.append(
            _candidate(len(self._candidates), scored, self.how, self._evaluation)
        )

    def selection(self) -> Selection:
        """Rank the traces so far, and select from the ranking."""
        how = self.how
        candidates = self._candidates
        _check(candidates, how)
        counted = all(candidate.tokens is not None for candidate in candidates)
        if counted:
            for candidate in candidates:
                candidate.length = float(candidate.tokens or 0)
        ranked = [candidate for candidate in candidates if not candidate.why]
        _rank(ranked, how)
        dropped = []
        for candidate in candidates:
            if candidate.why:
                dropped.append(Dropped(candidate.index, candidate.id, candidate.why))
        kept, dropped_later = _keep(ranked, how)
        dropped += dropped_later

        lengths = [candidate.length for candidate in ranked]
        tied = 0
        with_length = None
        if how.by == "reward":
            scores = [candidate.score or 0.0 for candidate in ranked]
            worths = [candidate.worth for candidate in ranked]
            tied = _tied_with_last(ranked, kept)
            with_length = rank_correlation(scores, lengths), rank_correlation(worths, lengths)
        return Selection(
            kept=tuple(kept),
            dropped=tuple(dropped),
            counted_by="traces" if counted else "estimate",
            tokens_before=sum(lengths) / max(1, len(lengths)),
            tied=tied,
            with_length=with_length,
        )


def _tied_with_last(ranked: Sequence[_Candidate], kept: Sequence[Kept]) -> int:
    """Count the candidates that were ranked equal to the lowest one kept."""
    worths = {candidate.index: candidate.worth for candidate in ranked}
    lowest = min((worths[trace.index] for trace in kept), default=math.nan)
    return sum(worth == lowest for worth in worths.values())


def _candidate(index: int, scored: Scored, how: Choice, evaluation: EvaluationSet) -> _Candidate:
    """Return what selection needs of a trace."""
    trace = scored.trace
    score = scored.score
    if score is not None and math.isnan(score):
        score = None
    why = _exclusion(trace, score, how, evaluation)
    mark = None
    if not why and not how.keep_duplicates:
        mark = fingerprint(trace)
    problem = b""
    if how.per_problem:
        problem = digest(problem_id(trace) or normalized(trace.question))
    return _Candidate(
        index=index,
        id=trace.id,
        teacher=trace.teacher,
        topic=trace.topic,
        score=score,
        tokens=trace.tokens,
        # Four bytes of UTF-8 are about one token, in English as in Chinese.
        length=(_utf8_bytes(trace.thinking) + _utf8_bytes(trace.answer)) / 4,
        problem=problem,
        # It depends on the text, not on the order of the input; samples with the same id have
        # different lots.
        lot=seed_from(how.seed, trace.id, trace.thinking, trace.answer),
        why=why,
        fingerprint=mark,
    )


def _exclusion(trace: Trace, score: float | None, how: Choice, evaluation: EvaluationSet) -> str:
    """Return why a trace is dropped before ranking; "" if it is ranked."""
    if how.teacher and trace.teacher != how.teacher:
        return "another teacher"
    if how.needs_scores and score is None:
        return "unscored"
    if how.threshold is not None and score is not None and score < how.threshold:
        return "below the threshold"
    if how.right:
        why = _wrong(trace)
        if why:
            return why
    if evaluation.contains(trace):
        return "in the evaluation set"
    return ""


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _wrong(trace: Trace) -> str:
    """Return why a trace doesn't count as correct; "" if it does."""
    if trace.correct is not None:
        return "" if trace.correct else "wrong"
    gold = ""
    if isinstance(trace.gold, str | int | float):
        gold = str(trace.gold)
    if "\\boxed{" in gold or "<answer>" in gold:  # a solution that ends with the answer
        gold = final(gold) or ""
    if not gold.strip():
        return "no reference answer to check it against"
    answer = final(trace.answer)
    if answer is None or differs(answer, gold):
        return "wrong"
    return ""


def _check(candidates: Sequence[_Candidate], how: Choice) -> None:
    """Raise `UserError` if the traces lack what the choice needs."""
    if not candidates:
        raise UserError("there are no traces")
    if how.needs_scores and all(candidate.score is None for candidate in candidates):
        raise UserError(
            "no trace has a score", hint="ponder score FILE --reward NAME; or --by random"
        )
    teachers = {candidate.teacher for candidate in candidates} - {""}
    if how.teacher and how.teacher not in teachers:
        hint = plugins.nearest(how.teacher, teachers) if teachers else "no trace names its teacher"
        raise UserError(f"no trace is by the teacher `{how.teacher}`", hint=hint)
    if how.per_teacher and not teachers:
        raise UserError(
            "no trace names its teacher", hint="per_teacher needs the key `teacher` in each record"
        )
    if how.per_topic and not any(candidate.topic for candidate in candidates):
        raise UserError(
            "no trace has a topic", hint="per_topic needs the key `topic` in each record"
        )


def _rank(ranked: list[_Candidate], how: Choice) -> None:
    """Sort candidates, the best first; ties at random, by the seed."""
    _value(ranked, how)
    if how.match_length:
        _match_lengths(ranked, how)
    # Problems come in random order; each candidate follows the better ones of its problem.
    order = {
        candidate.problem: seed_from(how.seed, candidate.problem.hex()) for candidate in ranked
    }

    def position(candidate: _Candidate) -> tuple[int, float, int | str, int]:
        tie_break = candidate.lot if how.by == "reward" else candidate.id
        return order[candidate.problem], -candidate.worth, tie_break, candidate.index

    ranked.sort(key=position)


def _value(candidates: Sequence[_Candidate], how: Choice) -> None:
    """Set each candidate's worth, the sort key."""
    generator = random.Random(how.seed)
    scores = ties([candidate.score or 0.0 for candidate in candidates], how.tolerance)
    for candidate, score in zip(candidates, scores, strict=True):
        if how.by == "reward":
            candidate.worth = score
        elif how.by == "random":
            candidate.worth = generator.random()
        elif how.by == "longest":
            candidate.worth = candidate.length
        elif how.by == "shortest":
            candidate.worth = -candidate.length
        else:
            candidate.worth = -float(candidate.index)


def _match_lengths(candidates: Sequence[_Candidate], how: Choice) -> None:
    """Replace each worth by its rank among candidates of similar length."""
    groups: dict[str, list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.teacher if how.per_teacher else ""].append(candidate)
    for group in groups.values():
        worths = [candidate.worth for candidate in group]
        lengths = [candidate.length for candidate in group]
        for candidate, rank in zip(group, matched(worths, lengths), strict=True):
            candidate.worth = rank


def ties(scores: Sequence[float], tolerance: float) -> list[float]:
    """Return for each score the best one that it ties with.

    From the top, all scores within the tolerance of the best are one tie; the next one opens
    another.
    """
    best = math.inf
    tied = dict[float, float]()
    for score in sorted(set(scores), reverse=True):
        if not best - score <= tolerance:
            best = score
        tied[score] = best
    return [tied[score] for score in scores]


def _keep(ranked: Sequence[_Candidate], how: Choice) -> tuple[list[Kept], list[Dropped]]:
    """Go through the ranking; drop duplicates of a better trace, and traces beyond a limit."""
    kept = list[Kept]()
    dropped = list[Dropped]()
    index = FingerprintIndex(how.alike)
    limits = _Limits(how)
    tokens = 0.0
    budget_reached = False
    for position, candidate in enumerate(ranked, 1):
        why = ""
        original = ""  # the trace that it duplicates
        if len(kept) == how.top:
            why = f"beyond the top {how.top:,}"
        elif budget_reached:
            why = "beyond the token budget"
        else:
            why = limits.reached(candidate)
        if not why and candidate.fingerprint:
            copy = index.nearest(candidate.fingerprint)
            if copy:
                number, exact = copy
                why = "duplicate" if exact else "near-duplicate"
                original = kept[number].id
        if (
            not why
            and how.budget_tokens is not None
            and tokens + candidate.length > how.budget_tokens
        ):
            why = "beyond the token budget"
            budget_reached = True
        if why:
            dropped.append(Dropped(candidate.index, candidate.id, why, original))
            continue
        if candidate.fingerprint:
            index.add(candidate.fingerprint)
        limits.count(candidate)
        tokens += candidate.length
        reason = _reason(candidate, how, position, len(ranked))
        rank = len(kept) + 1
        kept.append(
            Kept(
                candidate.index,
                candidate.id,
                rank,
                candidate.score,
                round(candidate.length),
                reason,
            )
        )
    return kept, dropped


class _Limits:
    """How many traces of a topic, a teacher and a problem may be kept, and how many were."""

    def __init__(self, how: Choice) -> None:
        self.limits = dict[str, int]()
        if how.per_topic:
            self.limits["topic"] = how.per_topic
        if how.per_teacher:
            self.limits["teacher"] = how.per_teacher
        if how.per_problem:
            self.limits["problem"] = 1
        self.counts = {name: Counter[Any]() for name in self.limits}

    def reached(self, candidate: _Candidate) -> str:
        """Return why no more of a candidate's kind may be kept; "" if they may."""
        for name, limit in self.limits.items():
            if self.counts[name][getattr(candidate, name)] == limit:
                return f"beyond {limit:,} of its {name}"
        return ""

    def count(self, candidate: _Candidate) -> None:
        for name, count in self.counts.items():
            count[getattr(candidate, name)] += 1


def _reason(candidate: _Candidate, how: Choice, position: int, count: int) -> str:
    """Return why a trace is kept."""
    if how.per_problem:
        first = {"reward": "scores highest", "random": "is drawn", "all": "comes first"}.get(
            how.by, f"is {how.by}"
        )
        return f"{first} of its problem's traces"
    if how.match_length:
        return f"scores above {candidate.worth:.1%} of the traces of similar length"
    if how.by == "reward":
        return f"score ranks {position:,} of {count:,}"
    if how.by == "random":
        return f"drawn {position:,} of {count:,} with seed {how.seed}"
    if how.by == "all":
        return "all traces are kept"
    return f"{position:,} of {count:,} by length, {how.by} first"


def matched(scores: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """Return for each trace the fraction of its neighbours in length that score lower.

    A tie counts half. As many neighbours are longer as are shorter, a tenth of all traces together.
    So however the score depends on length, even if it is the length, traces of all lengths are
    equally likely to rank above most of their neighbours. No curve is fitted, since none would
    follow every reward.
    """
    order = sorted(range(len(scores)), key=lambda n: lengths[n])
    reach = min(REACH, max(1, len(order) // 20))
    window = list[float]()  # the sorted scores of order[start:stop]
    start = 0
    stop = 0
    ranks = [0.0] * len(order)
    for position, n in enumerate(order):
        half = min(reach, position, len(order) - 1 - position)
        while stop <= position + half:
            insort(window, scores[order[stop]])
            stop += 1
        while start < position - half:
            del window[bisect_left(window, scores[order[start]])]
            start += 1
        below = bisect_left(window, scores[n])
        not_above = bisect_right(window, scores[n])
        ranks[n] = (below + not_above) / 2 / len(window)
    return ranks


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; 0 if either doesn't vary."""
    ranks = np.array([_ranks(left), _ranks(right)])
    if len(left) < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rank of each value, from 1; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(
        np.asarray(values, np.float64), return_inverse=True, return_counts=True
    )
    mean_ranks: npt.NDArray[np.float64] = counts.cumsum() - (counts - 1) / 2
    return mean_ranks[inverse]
