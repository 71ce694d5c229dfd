"""What some plugins can do beside what their interface asks of all: small classes to inherit next
to `Task` or `Model`.

    class Execution(Task, Conversation, Drawable):

The functions below ask a plugin for such an ability, and say what holds for a plugin without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from ponder.core.contracts import Method, Model, Task, TrainingProblems
from ponder.core.errors import UserError
from ponder.core.nouns import (
    Completion,
    Grade,
    Memory,
    Message,
    Problem,
    Progress,
    Request,
    Source,
    Spend,
)

if TYPE_CHECKING:
    from ponder.core.drawing import Drawing
    from ponder.core.scoring import CacheBudget, Policy

Fidelity: TypeAlias = Literal["no", "also", "only"]
# Computes the most that something may take; None if there is no limit.
Limit: TypeAlias = Callable[[], "Spend | None"]
LONG_ANSWER = 10_000  # characters that any built-in grader reads within a millisecond


class Conversation(ABC):
    """A task whose turns each have an answer."""

    @abstractmethod
    def solve_turn(self, problem: Problem, turn: int) -> str:
        """Return a right answer to one turn."""

    @abstractmethod
    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Judge all answers together."""

    def turn_grades(self, problem: Problem, answers: Sequence[str]) -> Sequence[Grade]:  # noqa: ARG002 for subclasses
        """Judge each turn by itself, for exports; empty if only all turns together are judged."""
        return ()

    def history_entry(self, answer: str) -> str:
        """Return what is kept of a reply in the history under `remember = "answers"`."""
        return answer


class ParsesAnswers(ABC):
    """A task that reads an answer without grading it: grading is slow, or judges all turns at once."""

    @abstractmethod
    def parse(self, problem: Problem, answer: str) -> Any:
        """Return the answer of one turn as JSON, right or wrong; None if there is no answer."""


class ComparesAnswers(ABC):
    """A task in which two parsed answers may be the same though they aren't equal, such as 0.5 and
    1/2.
    """

    @abstractmethod
    def same_answer(self, one: Any, other: Any) -> bool:
        """Return whether two parsed answers are the same, and so vote together."""


class SlowGrading:
    """A task whose `grade` may take longer than a millisecond for a short answer: it is called in a
    thread.
    """


class Drawable:
    """A task that shows its problems and answers to a reader."""

    def drawings(self, problem: Problem, answers: Sequence[str]) -> Sequence[Drawing]:  # noqa: ARG002 for subclasses
        """Draw the problem with the answers of its turns; the first is shown, others can be chosen."""
        return ()

    def right_answer(self, problem: Problem) -> Any:
        """Return the right answer as JSON, if `gold` is more than that."""
        return problem.gold


class CheckedSteps(ABC):
    """A task that checks the steps of a solution."""

    @classmethod
    @abstractmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> Sequence[bool] | None:
        """Return for each step whether it and all before it are right; None if the text can't be
        checked.
        """


class Addends(ABC):
    """A task whose answers are sums. Teachers that write worked solutions use it."""

    @abstractmethod
    def addends(self, problem: Problem, turn: int) -> Sequence[tuple[str, int]]:
        """Return the terms of a turn's sum in order: how each number was obtained ("" if it is
        given), and it.
        """


class WithWarning(ABC):
    """A task with settings that are allowed but may be a mistake."""

    @abstractmethod
    def warning(self) -> str:
        """Describe what looks like a mistake; "" if nothing does."""


class FromLog:
    """A task or model whose attempts another program made: they are only in the store, with the
    grades of its log.
    """


class Sampled(ABC):
    """A model with a temperature."""

    refusal: ClassVar[tuple[str, str]] = (
        "a model of the kind `{kind}` can't be sampled at a temperature",
        "put training methods before `vote` and the like, not after",
    )

    @abstractmethod
    def at_temperature(self, temperature: float) -> Model:
        """Return the same model, sampled at a temperature."""


class WithWeights(ABC):
    """A model with local weights, which methods can change."""

    refusal: ClassVar[tuple[str, str]] = (
        "a model of the kind `{kind}` has no local weights that could be changed",
        'name = "transformers" with an id, or name = "pocket"',
    )

    @abstractmethod
    def source(self, task: Task) -> Source:
        """Return where its weights for a task are."""

    @abstractmethod
    def with_weights(self, folder: Path) -> Model:
        """Return the same model with the weights in a folder."""

    def with_adapter(self, weights: Path, adapter: Path) -> Model | None:  # noqa: ARG002 for subclasses
        """Return the same model with a LoRA adapter on the weights in a folder; None if it can't
        serve one unmerged.
        """
        return None

    def made(self, task: Task) -> Mapping[str, float]:  # noqa: ARG002 for subclasses
        """Return what making its weights for a task cost, and what was measured; empty if Ponder
        didn't make them.

        The costs are `rollout_tokens`, `training_tokens` and `seconds` of CPU.
        """
        return {}

    def ships(self) -> bool:
        """Return whether its weights come with Ponder, and with them what policies have learned for
        them.
        """
        return False

    def gpus(self) -> float:
        """Return how many GPUs one copy of it needs, where a cluster hands them out."""
        return 0


class Codec(Protocol):
    """Renders requests as token ids and reads replies, for weights that don't use a chat template.

    A model plugin returns one from `WithCodec.codec`; the pocket model is an example.
    """

    def prompt_ids(self, request: Request) -> list[int]:
        """Render the request."""

    def reply(self, request: Request, ids: Sequence[int]) -> tuple[str, str, int]:
        """Return thinking, answer, and the number of thinking tokens of a reply."""

    def split(self, thinking: str) -> list[str]:
        """Split thinking into its steps."""

    def sound(self, request: Request, steps: Sequence[str], style: str) -> list[bool]:
        """Return for each step of the thinking whether it is right and follows from those before
        it.
        """


class WithCodec(ABC):
    """A model whose tokens a `Codec` renders and reads, instead of a chat template."""

    @abstractmethod
    def codec_name(self, task: Task) -> str:
        """Return the model plugin whose `codec` its weights use; "" if they use a chat template."""

    @classmethod
    def codec(cls, task: str) -> Codec | None:  # noqa: ARG003 for subclasses
        """Return the codec of its weights for a task; None if they use a chat template."""
        return None


class Prunable(ABC):
    """A model whose KV cache an eviction policy can prune."""

    refusal: ClassVar[tuple[str, str]] = (
        "a KV cache can be pruned only in local weights, not in a model of the kind `{kind}`",
        'name = "transformers", id = "pocket"',
    )

    @abstractmethod
    def with_policy(self, policy: Policy, budget: CacheBudget | None, fidelity: Fidelity) -> Model:
        """Return the same model with a KV cache that a policy prunes to a budget."""

    @abstractmethod
    def fit_policy(
        self, policy: Policy, train_on: Sequence[TrainingProblems]
    ) -> Iterator[Progress]:
        """Train what an eviction policy needs to know about this model, unless that is already
        there.
        """

    @abstractmethod
    def prompt_tokens(self, request: Request) -> int | None:
        """Return how long a prompt is, in tokens; None if that is unknown before it is asked."""


class Served:
    """A model that a server answers for, which it may start itself.

    It tells a request of each call that it sends.
    """

    async def reach(self) -> None:
        """Raise `UserError` if the server can't answer. Called once, when a run opens it."""

    def start(self, task: Task) -> Iterator[Progress]:  # noqa: ARG002 for subclasses
        """Start the server; yields progress."""
        yield from ()

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep running what `start` has started while the block runs, between one use of the model
        and the next.
        """
        return nullcontext()


class Forecast(ABC):
    """A model that can guess how fast it is."""

    @abstractmethod
    def tokens_per_second(self, task: Task) -> tuple[float, str] | None:
        """Estimate the aggregate throughput, and say what from; None if unknown."""


class Measuring(ABC):
    """A model, or a method, whose completions measure more than tokens."""

    @abstractmethod
    def measures(self) -> Collection[str]:
        """Return the names of the measurements, for figures that draw them."""


class Prepared(ABC):
    """A method that has work to do before it is applied, such as training."""

    changes_weights: ClassVar[bool] = False  # whether its model is a folder of new weights

    @abstractmethod
    def make(self, model: Model) -> Iterator[Progress]:
        """Do what takes long before `apply`; yields progress.

        Does nothing if it is already done.
        """

    def missing_outputs(self, model: Model) -> Collection[Path]:  # noqa: ARG002 for subclasses
        """Return what `make` still has to write for this model, also files and folders that other
        methods need too.

        With `--jobs` or `--ray` they are made in other processes, and no two processes make the
        same one. A method that doesn't say what it writes is made in the run's own process.
        """
        return ()

    def folder(self, model: Model) -> Path | None:  # noqa: ARG002 for subclasses
        """Return where the weights or the reward made for this model are, or will be; None if it
        makes none.
        """
        return None

    def sampling_limits(self, model: Model) -> Mapping[Path, Limit]:  # noqa: ARG002 for subclasses
        """Return the most that `make` will sample, by the file that keeps it, so that shared
        samples count once.
        """
        return {}

    def samplers(self, model: Model) -> Sequence[Model]:  # noqa: ARG002 for subclasses
        """Return the models that `make` still has to ask, such as teachers and judges: the study's
        caps count them.

        Whatever `make` asks, it asks through `ponder.core.metering.complete`.
        """
        return ()

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:  # noqa: ARG002 for subclasses
        """Return the same method with the problems that it may train on."""
        return self

    def training_seed(self) -> int | None:
        """Return the seed of its training, by which alone variants may differ; None if it doesn't
        train.
        """
        return None


class ChecksPrompts(ABC):
    """A method that may have no room for a prompt."""

    @abstractmethod
    def check_prompt(self, model: Model, request: Request) -> None:
        """Raise `UserError` for a prompt that it has no room for, before a run starts."""


Capability = TypeVar("Capability", Sampled, WithWeights, Prunable)


def require(model: Model, capability: type[Capability]) -> Capability:
    """Return the model if it has a capability; else raise the `UserError` that says what to use
    instead.
    """
    if isinstance(model, capability):
        return model
    what, hint = capability.refusal
    raise UserError(what.format(kind=model.plugin_name()), hint=hint)


def changes_weights(method: Method) -> bool:
    """Return whether a method's model is a folder of new weights."""
    return isinstance(method, Prepared) and method.changes_weights


def training_seed(method: Method) -> int | None:
    """Return the seed of a method's training; None if it doesn't train."""
    return method.training_seed() if isinstance(method, Prepared) else None


def kept_open(model: Model) -> AbstractContextManager[None]:
    """Keep a model's servers running while the block runs, if it starts some."""
    return model.kept_open() if isinstance(model, Served) else nullcontext()


def solve_turn(task: Task, problem: Problem, turn: int) -> str:
    """Return a right answer to one turn of a problem."""
    if isinstance(task, Conversation):
        return task.solve_turn(problem, turn)
    return task.solve(problem)


def solve_turns(task: Task, problem: Problem) -> list[str]:
    """Return a right answer to each turn of a problem."""
    return [solve_turn(task, problem, turn) for turn in range(len(problem.turns))]


def grade_turns(task: Task, problem: Problem, answers: Sequence[str]) -> Grade:
    """Judge the answers of all turns; the last one counts if the task isn't a conversation."""
    if isinstance(task, Conversation):
        return task.grade_turns(problem, answers)
    return task.grade(problem, answers[-1])


def parse_answer(task: Task, problem: Problem, answer: str) -> Any:
    """Return the answer of one turn as JSON, right or wrong; None if there is no answer."""
    if isinstance(task, ParsesAnswers):
        return task.parse(problem, answer)
    return task.grade(problem, answer).parsed


def parse_turns(task: Task, problem: Problem, answers: Sequence[str]) -> Any:
    """Return the answer of a whole attempt as JSON, right or wrong; None if there is no answer."""
    if not answers:
        return None
    if len(problem.turns) > 1:
        return grade_turns(task, problem, answers).parsed
    return parse_answer(task, problem, answers[-1])


def right_answer(task: Task, problem: Problem) -> Any:
    """Return the right answer as JSON, to be shown next to what `parse_turns` finds."""
    if isinstance(task, Drawable):
        return task.right_answer(problem)
    return problem.gold


def same_answer(task: Task, one: Any, other: Any) -> bool:
    """Return whether two parsed answers are the same."""
    if isinstance(task, ComparesAnswers):
        return task.same_answer(one, other)
    return bool(one == other)


def equal_answers(task: Task, parsed: Sequence[Any]) -> list[int | None]:
    """Return for each parsed answer the index of the first that is the same; None where there is no
    answer.

    Samples with the same number vote together: while a run asks, and when stored attempts are
    counted.
    """
    distinct: list[int] = []  # indices of answers that differ from all before them
    firsts: list[int | None] = []
    for index, answer in enumerate(parsed):
        if answer is None:
            firsts.append(None)
            continue
        first = next(
            (other for other in distinct if same_answer(task, answer, parsed[other])), index
        )
        if first == index:
            distinct.append(index)
        firsts.append(first)
    return firsts


def grades_slowly(task: Task, answers: Iterable[str]) -> bool:
    """Return whether these answers should be graded in a thread, so that a run's other calls don't
    wait.
    """
    return isinstance(task, SlowGrading) or sum(map(len, answers)) > LONG_ANSWER


def history_message(task: Task, memory: Memory, completion: Completion) -> Message:
    """Return a completion as it stands in the history of later turns."""
    text = completion.answer
    if memory.remember == "answers" and isinstance(task, Conversation):
        text = task.history_entry(completion.answer)
    elif memory.remember == "all" and completion.thinking:
        text = f"<think>{completion.thinking}</think>\n{completion.answer}"
    return Message("assistant", text)
