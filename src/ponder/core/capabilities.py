"""Capabilities: what only some plugins can do, as small classes to inherit next to the interface.

    class Execution(Task, Conversation, Drawable): ...

A capability says what the plugin must define and who calls it. Callers test `isinstance(model,
WithWeights)`, or call `require(model, WithWeights)`, which raises the `UserError` that says what to
use instead. The functions below call a capability where a plugin has it, and do what holds for a
plugin without it where it doesn't.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from ponder.core.contracts import Method, Model, Task, TrainingProblems
from ponder.core.errors import UserError
from ponder.core.jobs import Jobs
from ponder.core.nouns import (
    Completion,
    Drawing,
    Grade,
    Memory,
    Message,
    Prices,
    Problem,
    Progress,
    Request,
    SignedMessage,
    Source,
    Spend,
)

if TYPE_CHECKING:
    from ponder.core.scoring import CacheBudget, Policy

# Whether a model with a pruned cache also measures how far its logits differ from the full cache's.
Fidelity: TypeAlias = Literal["no", "also", "only"]
# Computes an upper bound on what some work may spend; None if there is no limit.
Limit: TypeAlias = Callable[[], "Spend | None"]
# Details of an attempt: what it was graded with, the judge's verdict, and a person's.
GRADER = "grader"
JUDGED = "judge_right"
LABEL = "label"
LONG_ANSWER = 10_000  # characters that any built-in grader reads within a millisecond


# Tasks


class Conversation(ABC):
    """A task with several turns, each of which has an answer.

    `Problem.turns` holds one user message per turn. A run asks them one after the other.
    """

    @abstractmethod
    def solve_turn(self, problem: Problem, turn: int) -> str:
        """Return a correct answer to one turn, as a model should write it."""

    @abstractmethod
    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Grade the replies of all turns together, when the last turn is answered."""

    def turn_grades(self, problem: Problem, answers: Sequence[str]) -> Sequence[Grade]:  # noqa: ARG002 for subclasses
        """Grade each turn separately, for exports; empty if the task can't."""
        return ()

    def history_entry(self, answer: str) -> str:
        """Return the text that stands for a reply in later turns under `remember = "answers"`."""
        return answer


class ParsesAnswers(ABC):
    """A task that can parse an answer without grading it.

    Votes and the view of a transcript need only the parsed answer. Inherit it where grading is slow
    or judges all turns at once.
    """

    @abstractmethod
    def parse(self, problem: Problem, answer: str) -> Any:
        """Return the answer of one turn as JSON, right or wrong; None if there is no answer."""


class ComparesAnswers(ABC):
    """A task in which different parsed answers may mean the same, such as 0.5 and 1/2."""

    @abstractmethod
    def same_answer(self, one: Any, other: Any) -> bool:
        """Return whether two parsed answers mean the same, so that they vote together."""


class RecordsGrader(ABC):
    """A task whose user may edit how it grades: each grade records with what it was made."""

    @abstractmethod
    def grader_id(self) -> str:
        """Return a digest of all that grades depend on, as in `details["grader"]`; "" for none."""


class Judged(RecordsGrader):
    """A task whose replies another model may judge.

    A run asks the judge about each complete reply, under the study's caps, and stores its
    `Judgement` with the reply. If the judge gives no verdict, the attempt has failed, and the next
    run asks the judge again, not the model.
    """

    @abstractmethod
    def asks(self) -> Model | None:
        """Return the model that judges; None if these settings need none."""

    @abstractmethod
    def judge_id(self) -> str:
        """Return a digest of what verdicts depend on: the judge, its rubric, its prompt."""

    @abstractmethod
    def judge_request(self, problem: Problem, answer: str, seed: int) -> Request:
        """Return the request that asks the judge about a reply."""

    @abstractmethod
    def verdict(self, reply: Completion) -> bool:
        """Return whether the judge calls a reply right; raise `ValueError` if it doesn't say."""

    @abstractmethod
    def label_count(self) -> int:
        """Return how many replies people have judged."""

    @abstractmethod
    def grade_judged(self, problem: Problem, answer: str, *, right: bool) -> Grade:
        """Grade a reply by the judge's verdict.

        The details are `JUDGED`, the verdict, and `LABEL` if a person has judged the same reply.
        """


class SlowGrading:
    """A task whose `grade` may take over a millisecond: a run calls it in a thread."""

    def is_slow(self) -> bool:
        """Return whether it does with these settings."""
        return True


class Drawable:
    """A task that draws its problems and answers on the page of a transcript."""

    def drawings(self, problem: Problem, answers: Sequence[str]) -> Sequence[Drawing]:  # noqa: ARG002 for subclasses
        """Draw the problem with the answers of its turns.

        The page shows the first drawing and offers the others.
        """
        return ()

    def right_answer(self, problem: Problem) -> Any:
        """Return the correct answer as JSON, if `gold` holds more than that."""
        return problem.gold


class CheckedSteps(ABC):
    """A task that can check the steps of a solution; the `oracle` reward scores with it."""

    @classmethod
    @abstractmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> Sequence[bool] | None:
        """Return for each step whether it and all steps before it are correct.

        Return None if the text can't be checked.
        """


class Addends(ABC):
    """A task whose answers are sums. Teachers that write worked solutions use it."""

    @abstractmethod
    def addends(self, problem: Problem, turn: int) -> Sequence[tuple[str, int]]:
        """Return the terms of a turn's sum in order: how each was obtained, and its value.

        The text is "" for a number that the problem states.
        """


class WithWarning(ABC):
    """A task with settings that are allowed but may be a mistake."""

    @abstractmethod
    def warning(self) -> str:
        """Return a sentence that `plan` and `run` print; "" if nothing looks like a mistake."""


class FromLog:
    """A task or model that another program ran: its attempts are imported and can't be repeated."""


# Models


class IgnoresMessages:
    """A model that answers from the problem itself, whatever a request's messages say."""


class Sampled(ABC):
    """A model with a temperature."""

    refusal: ClassVar[tuple[str, str]] = (
        "a model of the kind `{kind}` can't be sampled at a temperature",
        "put training methods before `vote` and the like, not after",
    )

    @abstractmethod
    def at_temperature(self, temperature: float) -> Model:
        """Return the same model at another temperature, for methods that sample rollouts."""


class BudgetsThinking(ABC):
    """A model whose server may be able to end the thinking after a number of tokens."""

    @abstractmethod
    def with_think(self, tokens: int) -> Model | None:
        """Return the same model with that limit on its thinking, for the method `budget_force`.

        Its replies have no other limit than that of the request. Return None if the server can't.
        """


class WithWeights(ABC):
    """A model with local weights, which training methods change."""

    refusal: ClassVar[tuple[str, str]] = (
        "a model of the kind `{kind}` has no local weights that could be changed",
        'name = "transformers" with an id, or name = "pocket"',
    )

    @abstractmethod
    def source(self, task: Task) -> Source:
        """Return where its weights for a task are, and how to load them."""

    @abstractmethod
    def with_weights(self, folder: Path) -> Model:
        """Return the same model with the weights in a folder, which a method has trained."""

    def with_adapter(self, weights: Path, adapter: Path) -> Model | None:  # noqa: ARG002 for subclasses
        """Return the same model with a LoRA adapter on the weights in a folder.

        Return None if it can't serve an unmerged adapter.
        """
        return None

    def made(self, task: Task) -> Mapping[str, float]:  # noqa: ARG002 for subclasses
        """Return what training its weights for a task cost, and what was measured meanwhile.

        The costs are `rollout_tokens`, `training_tokens` and `seconds` of CPU. Empty if Ponder
        didn't train them.
        """
        return {}

    def ships(self) -> bool:
        """Return whether its weights come with Ponder, together with trained eviction policies."""
        return False

    def gpus(self) -> float:
        """Return how many GPUs one copy needs. A cluster reserves them."""
        return 0


class Codec(Protocol):
    """Renders requests as token ids and parses replies, for weights without a chat template.

    A model plugin returns one from `WithCodec.codec`; the pocket model is an example.
    """

    def prompt_ids(self, request: Request) -> list[int]:
        """Return the token ids of a request's prompt."""

    def reply(self, request: Request, ids: Sequence[int]) -> tuple[str, str, int]:
        """Return the thinking, the answer, and the number of thinking tokens of a reply."""

    def split(self, thinking: str) -> list[str]:
        """Split thinking into its steps."""

    def sound(self, request: Request, steps: Sequence[str], style: str) -> list[bool]:
        """Return for each step of the thinking whether it and all steps before it are correct."""


class WithCodec(ABC):
    """A model whose weights use a `Codec` instead of a chat template."""

    @abstractmethod
    def codec_name(self, task: Task) -> str:
        """Return the model plugin whose `codec` the weights use; "" if they use a chat template."""

    @classmethod
    def codec(cls, task: str) -> Codec | None:  # noqa: ARG003 for subclasses
        """Return the codec of its weights for a task; None if they use a chat template."""
        return None


class Prunable(ABC):
    """A model whose KV cache an eviction policy can prune, through the method `compress`."""

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
        """Train a policy for this model and yield progress; do nothing if it is trained already."""

    @abstractmethod
    def prompt_tokens(self, request: Request) -> int | None:
        """Return the length of a prompt in tokens; None if it is unknown before the call."""


class CatalogEntry(NamedTuple):
    """A model in a list of many providers' prices."""

    model: str
    provider: str  # "" if only the address tells
    url: str


class Served:
    """A model that a server answers for, possibly one that it starts itself.

    Its `complete` notifies `request.observer` of each call that it sends.
    """

    async def reach(self) -> None:
        """Raise `UserError` if the server can't answer. Called once, when a run opens the model."""

    async def listed_prices(self) -> Prices | None:
        """Return the model's prices in the server's own list, in USD; None if it has none."""
        return None

    def catalogued(self) -> CatalogEntry | None:
        """Return how a price list calls the model; None for a server of one's own."""
        return None

    def start(self, task: Task) -> Iterator[Progress]:  # noqa: ARG002 for subclasses
        """Start the server and yield progress."""
        yield from ()

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep a started server running inside the block, from one use of the model to the next."""
        return nullcontext()


class Batched(ABC):
    """A model whose server may take requests in batch jobs, for less money and an answer later."""

    batch_discount: ClassVar[float] = 0.5  # fraction off all prices, for requests in jobs
    # Where jobs are remembered. A run sets it before it opens the model.
    jobs: Jobs = Jobs()

    @abstractmethod
    def sends_batches(self) -> bool:
        """Return whether requests are sent in jobs."""

    @abstractmethod
    def can_batch(self) -> bool:
        """Return whether the server has such jobs."""


class Forecast(ABC):
    """A model that can estimate its speed, for the durations that `ponder plan` prints."""

    @abstractmethod
    def tokens_per_second(self, task: Task) -> tuple[float, str] | None:
        """Estimate the aggregate throughput, and name what it is from; None if unknown."""


class Measuring(ABC):
    """A model or method whose completions measure more than tokens."""

    @abstractmethod
    def measures(self) -> Collection[str]:
        """Return the names in `Completion.measures`. `Figure.needs` is checked against them."""


# Methods


class Prepared(ABC):
    """A method with work to do before it is applied, such as training.

    A run calls `make` before `apply`; so does `ponder prepare STUDY`.
    """

    # Whether the resulting model is a folder of new weights.
    changes_weights: ClassVar[bool] = False

    @abstractmethod
    def make(self, model: Model) -> Iterator[Progress]:
        """Do the work for a model and yield progress; do nothing if it is done already."""

    def missing_outputs(self, model: Model) -> Collection[Path]:  # noqa: ARG002 for subclasses
        """Return the files and folders that `make` still has to write for a model.

        With `--jobs` or `--ray`, methods are made in other processes, and no two processes make the
        same output. A method that returns nothing here is made in the run's own process.
        """
        return ()

    def folder(self, model: Model) -> Path | None:  # noqa: ARG002 for subclasses
        """Return where the weights or the reward trained for a model are, or will be.

        Return None if it trains none.
        """
        return None

    def sampling_limits(self, model: Model) -> Mapping[Path, Limit]:  # noqa: ARG002 for subclasses
        """Return upper bounds on what `make` will sample, by the file that caches the samples.

        Two methods that share a file count it once.
        """
        return {}

    def samplers(self, model: Model) -> Sequence[Model]:  # noqa: ARG002 for subclasses
        """Return the models that `make` still has to ask, such as teachers and judges.

        The study's caps count them: `make` asks through `ponder.core.metering.complete`.
        """
        return ()

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:  # noqa: ARG002 for subclasses
        """Return the same method with the problems that it may train on."""
        return self

    def training_seed(self) -> int | None:
        """Return the seed of its training; None if it doesn't train.

        Cells that differ only in this seed are one variant.
        """
        return None


class ChecksPrompts(ABC):
    """A method that may have no room for a prompt."""

    @abstractmethod
    def check_prompt(self, model: Model, request: Request) -> None:
        """Raise `UserError` for a prompt that it has no room for, before a run starts."""


Capability = TypeVar("Capability", Sampled, WithWeights, Prunable)


def require(model: Model, capability: type[Capability]) -> Capability:
    """Return the model if it has a capability; raise `UserError` with its `refusal` if not."""
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
    """Keep a model's servers running inside the block, if it starts some."""
    return model.kept_open() if isinstance(model, Served) else nullcontext()


def solve_turn(task: Task, problem: Problem, turn: int) -> str:
    """Return a correct answer to one turn of a problem."""
    if isinstance(task, Conversation):
        return task.solve_turn(problem, turn)
    return task.solve(problem)


def solve_turns(task: Task, problem: Problem) -> list[str]:
    """Return a correct answer to each turn of a problem."""
    return [solve_turn(task, problem, turn) for turn in range(len(problem.turns))]


def judge_of_task(task: Task) -> Model | None:
    """Return the model that judges a task's replies; None if none does."""
    return task.asks() if isinstance(task, Judged) else None


def judge_limit(judge: Model, request: Request) -> Spend:
    """Return the most that a judge's verdict may take, as a part of the judged model's spend."""
    limit = judge.turn_limit(request.prompt_limit) or Spend(calls=1)
    return limit.as_reward(judge.prices)


def grade_turns(task: Task, problem: Problem, answers: Sequence[str]) -> Grade:
    """Grade the replies of all turns; only the last counts if the task isn't a conversation."""
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
    """Return the correct answer as JSON, to be shown next to the result of `parse_turns`."""
    if isinstance(task, Drawable):
        return task.right_answer(problem)
    return problem.gold


def same_answer(task: Task, one: Any, other: Any) -> bool:
    """Return whether two parsed answers mean the same."""
    if isinstance(task, ComparesAnswers):
        return task.same_answer(one, other)
    return bool(one == other)


def equal_answers(task: Task, parsed: Sequence[Any]) -> list[int | None]:
    """Return for each parsed answer the index of the first that means the same.

    Samples with the same number vote together, in a run and when stored attempts are counted. None
    stands where there is no answer.
    """
    firsts: list[int | None] = []
    distinct: list[int] = []  # indices of answers that differ from all before them
    for index, answer in enumerate(parsed):
        if answer is None:
            firsts.append(None)
            continue
        for earlier in distinct:
            if same_answer(task, answer, parsed[earlier]):
                firsts.append(earlier)
                break
        else:
            distinct.append(index)
            firsts.append(index)
    return firsts


def grades_slowly(task: Task, answers: Iterable[str]) -> bool:
    """Return whether to grade these answers in a thread, so that a run's other calls don't wait."""
    if isinstance(task, SlowGrading) and task.is_slow():
        return True
    return sum(map(len, answers)) > LONG_ANSWER


def history_message(task: Task, memory: Memory, completion: Completion) -> Message:
    """Return the message that stands for a completion in the history of later turns."""
    text = completion.answer
    if memory.remember == "answers" and isinstance(task, Conversation):
        text = task.history_entry(completion.answer)
    elif memory.remember == "all" and completion.blocks:
        return SignedMessage("assistant", text, completion.blocks)
    elif memory.remember == "all" and completion.thinking:
        text = f"<think>{completion.thinking}</think>\n{completion.answer}"
    return Message("assistant", text)
