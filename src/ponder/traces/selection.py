"""Which traces are worth training on: ranked by a reward, cleaned of copies and of what the evaluation asks.

    from ponder.traces.selection import Choice, Scored, select

    chosen = select([Scored(trace, score), …], Choice(top=1000, right=True, without=("math500",)))
    chosen.kept[0].place, chosen.kept[0].reason
    chosen.counts  # {"wrong": 412, "near-duplicate": 96, "beyond 1,000": 57_492}

After ReasonFlux-PRM (arXiv 2506.18896), which keeps the thousand best of 59,000. A reward may tell teachers and lengths
apart before it tells good from bad, so one can rank within a teacher (`per_teacher`) and among traces of like length
(`match_length`); random, longest and shortest are the baselines, at an equal number of tokens (`budget_tokens`).
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ponder.core import Problem, UserError, answers, plugins
from ponder.traces import Trace
from ponder.traces.duplicates import CacheView, Print, fingerprint
from ponder.traces.evaluation import Evaluation, problems
from ponder.traces.matching import matched, rank_correlation

__all__ = ["Choice", "Dropped", "Evaluation", "Kept", "Scored", "Selection", "select"]

By: TypeAlias = Literal["reward", "random", "longest", "shortest", "all"]


@dataclass(frozen=True)
class Choice:
    """What to keep of a pile; as it is, everything but copies, the best first."""

    by: By = "reward"  # the best first; or in a random order, the longest or shortest first, or all as they come
    top: int | None = None  # how many
    threshold: float | None = None  # only those with at least this score
    budget_tokens: int | None = None  # from the first on, as long as they have at most so many tokens
    per_topic: int | None = None  # at most so many of each topic
    per_teacher: int | None = None  # at most so many of each teacher, each ranked among its own
    teacher: str = ""  # only this one's
    match_length: bool = False  # rank each among traces of its length
    right: bool = False  # only those whose answer is right
    without: tuple[str, ...] = ()  # evaluation problems: task, task:size, task:size:seed, or a JSONL file of questions
    words: int = 8  # in a row, that a question must share with an evaluation problem for them to count
    share: float = 0.5  # of an evaluation problem's words: a question that shares so many is that problem
    keep_duplicates: bool = False
    alike: float = 0.8  # Jaccard similarity from which on traces are near-duplicates
    seed: int = 0  # of a random order

    def __post_init__(self) -> None:
        for name in ("top", "budget_tokens", "per_topic", "per_teacher", "words"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"{name} must be at least 1, not {number}")
        for name in ("share", "alike"):
            if not 0 < (number := getattr(self, name)) <= 1:
                raise UserError(f"{name} is above 0 and at most 1, not {number}")
        if self.match_length and self.by != "reward":
            raise UserError("match_length is for a ranking by reward", hint="leave it out, or leave out `by`")

    @property
    def needs_scores(self) -> bool:
        return self.by == "reward" or self.threshold is not None


@dataclass(frozen=True, slots=True)
class Scored:
    """A trace and its total score; None where the reward gave none."""

    trace: Trace
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    place: int  # in the pile, from 0
    id: str
    rank: int  # among those kept, from 1
    score: float | None
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    place: int
    id: str
    reason: str
    of: str = ""  # the id of the one that it repeats


@dataclass(frozen=True)
class Selection:
    kept: tuple[Kept, ...]  # the best first
    dropped: tuple[Dropped, ...]
    counted_by: Literal["traces", "estimate"]  # who counted the tokens
    tokens_before: float  # mean of the traces that were ranked
    # Rank correlation of score and length among those that were ranked: of the score, and of what they were ranked by.
    with_length: tuple[float, float] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many fell out for each reason."""
        return Counter(dropped.reason for dropped in self.dropped)

    @property
    def tokens(self) -> int:
        return sum(kept.tokens for kept in self.kept)

    def summary(self) -> dict[str, Any]:
        return {
            "kept": len(self.kept),
            "dropped": dict(self.counts),
            "tokens": self.tokens,
            "mean_tokens": round(self.tokens / max(1, len(self.kept)), 1),
            "mean_tokens_before": round(self.tokens_before, 1),
            "counted_by": self.counted_by,
            "score_with_length": self.with_length and self.with_length[0],
            "rank_with_length": self.with_length and self.with_length[1],
        }

    def table(self) -> str:
        """The same for a reader."""
        copies: dict[str, list[str]] = defaultdict(list)
        for dropped in self.dropped:
            if dropped.of:
                copies[dropped.reason].append(f"{dropped.id} of {dropped.of}")
        rows = [f"{len(self.kept):10,}  kept"]
        for why, number in self.counts.most_common():
            some = copies[why][:3] + ["…"] * (len(copies[why]) > 3)
            rows.append(f"{number:10,}  {why}" + (f" ({', '.join(some)})" if some else ""))
        if self.kept:
            estimated = " (an estimate: not every trace has `tokens`)" if self.counted_by == "estimate" else ""
            mean = self.tokens / len(self.kept)
            rows.append(f"{self.tokens:10,}  tokens, {mean:,.0f} a trace; {self.tokens_before:,.0f} before{estimated}")
        if self.kept and self.with_length:
            score, rank = self.with_length
            matched = f"; {rank:.2f} of its rank among traces of its length" if rank != score else ""
            rows.append(f"{score:10.2f}  rank correlation of score and length{matched}")
        return "\n".join(rows)


@dataclass(slots=True)
class _Candidate:
    """What selection remembers of a trace: no text."""

    place: int
    id: str
    teacher: str
    topic: str
    score: float | None
    tokens: int | None  # as the trace says
    length: float  # tokens as the trace says, if all do; else an estimate
    why: str  # it falls out before any ranking
    print: Print | None
    worth: float = 0.0  # the highest goes first


def select(pile: Iterable[Scored], how: Choice, asked: Iterable[Problem] = (), folder: Path | None = None) -> Selection:
    """The traces to keep, and why the others fell out. The pile is gone through once, and no text is held.

    `asked` are evaluation problems beside those of `how.without`, whose files are relative to `folder`.
    """
    named = (problem for name in how.without for problem in problems(name, folder or Path()))
    evaluation = Evaluation([*named, *asked], how.words, how.share)
    found = [_candidate(place, scored, how, evaluation) for place, scored in enumerate(pile)]
    _check(found, how)
    counted = all(c.tokens is not None for c in found)
    for candidate in found if counted else ():
        candidate.length = float(candidate.tokens or 0)
    ranked = [candidate for candidate in found if not candidate.why]
    _rank(ranked, how)
    early = [Dropped(c.place, c.id, c.why) for c in found if c.why]
    kept, late = _walk(ranked, how)
    lengths, scores = [c.length for c in ranked], [c.score or 0.0 for c in ranked]
    with_length = rank_correlation(scores, lengths), rank_correlation([c.worth for c in ranked], lengths)
    return Selection(
        tuple(kept),
        (*early, *late),
        "traces" if counted else "estimate",
        sum(lengths) / max(1, len(lengths)),
        with_length if how.by == "reward" else None,
    )


def _candidate(place: int, scored: Scored, how: Choice, evaluation: Evaluation) -> _Candidate:
    trace, score = scored.trace, None if scored.score is None or math.isnan(scored.score) else scored.score
    if how.teacher and trace.teacher != how.teacher:
        why = "of another teacher"
    elif how.needs_scores and score is None:
        why = "unscored"
    elif how.threshold is not None and score is not None and score < how.threshold:
        why = "below the threshold"
    elif how.right and (wrong := _wrong(trace)):
        why = wrong
    else:
        why = "in the evaluation set" if evaluation.holds(trace) else ""
    # Four bytes of UTF-8 are about a token, in English as in Chinese.
    length = sum(len(text.encode("utf-8", "surrogatepass")) for text in (trace.thinking, trace.answer)) / 4
    mark = None if why or how.keep_duplicates else fingerprint(trace)
    return _Candidate(place, trace.id, trace.teacher, trace.topic, score, trace.tokens, length, why, mark)


def _wrong(trace: Trace) -> str:
    """Why a trace isn't right; nothing if it is."""
    if trace.correct is not None:
        return "" if trace.correct else "wrong"
    gold = str(trace.gold) if isinstance(trace.gold, str | int | float) else ""
    if "\\boxed{" in gold or "<answer>" in gold:  # a solution, not only its answer
        gold = answers.final(gold) or ""
    if not gold.strip():
        return "can't be checked"
    said = answers.final(trace.answer)
    return "wrong" if said is None or answers.differs(said, gold) else ""


def _check(found: Sequence[_Candidate], how: Choice) -> None:
    """Raise `UserError` where the pile can't be chosen from in this way."""
    if not found:
        raise UserError("there are no traces")
    if how.needs_scores and all(c.score is None for c in found):
        raise UserError("no trace has a score", hint="ponder score FILE --reward NAME, or choose --by random")
    teachers = {c.teacher for c in found} - {""}
    if how.teacher and how.teacher not in teachers:
        hint = plugins.nearest(how.teacher, teachers) if teachers else "no trace says who its teacher is"
        raise UserError(f"no trace is of the teacher `{how.teacher}`", hint=hint)
    if how.per_teacher and not teachers:
        raise UserError("no trace says who its teacher is", hint="per_teacher needs the key `teacher` in each record")
    if how.per_topic and not any(c.topic for c in found):
        raise UserError("no trace has a topic", hint="per_topic needs the key `topic` in each record")


def _rank(ranked: list[_Candidate], how: Choice) -> None:
    """The best first; equals by id, and copies of an id as they come."""
    shuffled = random.Random(how.seed)
    for c in ranked:
        worth = {"reward": c.score or 0.0, "longest": c.length, "shortest": -c.length, "all": -float(c.place)}
        c.worth = shuffled.random() if how.by == "random" else worth[how.by]
    if how.match_length:
        groups: dict[str, list[_Candidate]] = defaultdict(list)
        for c in ranked:
            groups[c.teacher if how.per_teacher else ""].append(c)
        for group in groups.values():
            shares = matched([c.worth for c in group], [c.length for c in group])
            for c, share in zip(group, shares, strict=True):
                c.worth = share
    ranked.sort(key=lambda c: (-c.worth, c.id, c.place))


def _walk(ranked: Sequence[_Candidate], how: Choice) -> tuple[list[Kept], list[Dropped]]:
    """CacheBudget from the first on what is neither a copy of a better one nor beyond a limit."""
    kept, dropped = list[Kept](), list[Dropped]()
    topics, teachers = Counter[str](), Counter[str]()
    seen, spent, full = CacheView(how.alike), 0.0, False
    for position, c in enumerate(ranked, 1):
        why, of = "", ""
        if len(kept) == how.top:
            why = f"beyond {how.top:,}"
        elif full:
            why = "beyond the budget"
        elif topics[c.topic] == how.per_topic:
            why = f"beyond {how.per_topic:,} of its topic"
        elif teachers[c.teacher] == how.per_teacher:
            why = f"beyond {how.per_teacher:,} of its teacher"
        elif c.print and (copy := seen.nearest(c.print)):
            number, exact = copy
            why, of = "duplicate" if exact else "near-duplicate", kept[number].id
        elif how.budget_tokens is not None and spent + c.length > how.budget_tokens:
            why, full = "beyond the budget", True
        if why:
            dropped.append(Dropped(c.place, c.id, why, of))
            continue
        if c.print:
            seen.add(c.print)
        spent += c.length
        topics[c.topic] += 1
        teachers[c.teacher] += 1
        reason = _reason(c, how, position, len(ranked))
        kept.append(Kept(c.place, c.id, len(kept) + 1, c.score, round(c.length), reason))
    return kept, dropped


def _reason(c: _Candidate, how: Choice, position: int, of: int) -> str:
    if how.match_length:
        return f"its score is above {c.worth:.1%} of those of its length"
    return {
        "reward": f"its score ranks {position:,} of {of:,}",
        "random": f"drawn {position:,} of {of:,} with the seed {how.seed}",
        "longest": f"{position:,} of {of:,} by length",
        "shortest": f"{position:,} of {of:,} by length, the shortest first",
        "all": "all are kept",
    }[how.by]
