"""Draws samples to train on: a model's graded replies to training problems, several per problem.

Any model can be sampled, an endpoint too. A model in this process or behind vLLM gives its tokens
as it wrote them; the text of any other model is tokenized again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from ponder.core import (
    Completion,
    Model,
    ModelFailure,
    Problem,
    Progress,
    Request,
    Sampled,
    Served,
    Spend,
    Task,
    TrainingProblems,
    UserError,
    WithWeights,
    digest,
    require,
    seed_from,
)
from ponder.core.capabilities import grade_turns
from ponder.core.metering import complete
from ponder.core.wrapped import server_of
from ponder.models._torch_engine import Loaded, load
from ponder.training.loop import TokenExample
from ponder.training.made_models import write_card

LOOKED_AT = 20  # problems, to see how long prompts are


@dataclass(frozen=True)
class TrainingProblem:
    """One problem to train on, with its task."""

    task: Task
    problem: Problem

    def request(self, seed: int = 0, budget: int | None = None) -> Request:
        return Request.first_turn(self.task, self.problem, seed, budget)


@dataclass(frozen=True)
class Sample:
    """One reply, and whether its answer is right."""

    text: TokenExample
    right: bool
    thinking: str = ""
    answer: str = ""

    @property
    def tokens(self) -> int:
        return len(self.text.said)


def draw_problems(
    train_on: Sequence[TrainingProblems], number: int, seed: int
) -> list[TrainingProblem]:
    """Return this many problems in all, or as many as there are, from each task and size in turn."""
    training_problems: list[TrainingProblem] = []
    sources = [(problems.task, problems.problems(seed)) for problems in train_on]
    while sources and len(training_problems) < number:
        for source in tuple(sources):
            task, problems = source
            problem = next(problems, None)
            if problem is None:
                sources.remove(source)
            elif len(problem.turns) > 1:
                raise UserError(
                    "methods train on problems of one turn", hint="per_turn = 0 under [[train]]"
                )
            elif len(training_problems) < number:
                training_problems.append(TrainingProblem(task, problem))
    if not training_problems:
        message = "there is no problem to train on: the study asks all of them"
        raise UserError(message, hint="lower `problems`, or add a [[train]] with another task")
    return training_problems


def sampling_limit(
    model: Model,
    train_on: Sequence[TrainingProblems],
    problems: int,
    n: int,
    seed: int,
    budget: int | None = None,
) -> Spend | None:
    """Return an upper bound on a model's samples, or None if a reply has no limit.

    Prompts may be as long as the longest of the first problems. With prices, the tokens stand in
    `reward_tokens` and their price in `reward_cost`, because another model of the study has other
    prices.
    """
    number = problems
    if all(source.task.fixed() is not None for source in train_on):  # then there may be fewer
        number = len(draw_problems(train_on, problems, seed))
    first_problems = draw_problems(train_on, min(LOOKED_AT, problems), seed)
    longest = max(problem.request().prompt_limit for problem in first_problems)
    limit = model.turn_limit(longest, budget)
    if limit is None:
        return None
    if model.prices:
        limit = limit.as_reward(model.prices)
    return limit.times(number * n)


class Rollouts:
    """`n` samples of a model per problem: iterate over it to draw them, then read `samples`.

    Each reply is written to a file as it arrives, so that a preparation that was interrupted, or
    that stopped at a cap, resumes with what was paid for.
    """

    def __init__(
        self,
        model: Model,
        loaded: Loaded,
        problems: Sequence[TrainingProblem],
        n: int,
        seed: int,
        path: Path,
        budget: int | None = None,
    ) -> None:
        self._model = model
        self._loaded = loaded
        self._problems = problems
        self._n = n
        self._seed = seed
        self._path = path
        self._budget = budget
        self.samples: list[list[Sample]] = []

    def __iter__(self) -> Iterator[Progress]:
        """Draw all samples and write them to the file `path`, or read them if it exists."""
        if not self._path.is_file():
            replies = self._resumed()
            with self._replies_file.open("ab") as file:
                yield from self._draw(replies, file)
            samples = []
            for p in range(len(self._problems)):
                samples.append([self._sample(p, replies[p, n]) for n in range(self._n)])
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_bytes(msgspec.json.encode(samples))
            new.replace(self._path)
            self._replies_file.unlink(missing_ok=True)
        self.samples = msgspec.json.decode(self._path.read_bytes(), type=list[list[Sample]])

    @property
    def _replies_file(self) -> Path:
        """Return the file of the replies so far, named by what they are replies to."""
        problem_ids = [problem.problem.id for problem in self._problems]
        key = digest(problem_ids, self._n, self._seed, self._budget).hex()[:12]
        return self._path.with_name(f"{self._path.stem}.{key}.replies")

    def _resumed(self) -> dict[tuple[int, int], Completion]:
        """Return the replies of an interrupted preparation, without an incomplete last line."""
        replies: dict[tuple[int, int], Completion] = {}
        if not self._replies_file.is_file():
            return replies
        with self._replies_file.open("rb+") as file:
            lines = [line for line in file if line.endswith(b"\n")]
            file.truncate(sum(map(len, lines)))
        for line in lines:
            p, n, reply = msgspec.json.decode(line, type=tuple[int, int, Completion])
            replies[p, n] = reply
        return replies

    def _draw(
        self, replies: dict[tuple[int, int], Completion], file: BinaryIO
    ) -> Iterator[Progress]:
        """Request the missing replies, write each to the file, and yield progress every second."""

        async def start_requests() -> set[asyncio.Task[None]]:
            semaphore = asyncio.Semaphore(self._model.concurrency)
            requests = set()
            for p, n in itertools.product(range(len(self._problems)), range(self._n)):
                if (p, n) not in replies:
                    requests.add(asyncio.create_task(request(p, n, semaphore)))
            return requests

        async def request(p: int, n: int, semaphore: asyncio.Semaphore) -> None:
            async with semaphore:
                reply = await self._reply(p, n)
            replies[p, n] = reply
            stored = replace(reply, measures={}, step_scores=())
            file.write(msgspec.json.encode((p, n, stored)) + b"\n")
            file.flush()

        yield from self._start_server()
        with asyncio.Runner() as runner:
            runner.run(self._model.__aenter__())
            waiting: set[asyncio.Task[None]] = set()
            try:
                waiting = runner.run(start_requests())
                while waiting:
                    done, waiting = runner.run(asyncio.wait(waiting, timeout=1.0))
                    # Of all requests, so that asyncio doesn't report them as never retrieved.
                    errors = [task.exception() for task in done]
                    for error in errors:
                        if error:
                            raise error
                    yield {"sampled": len(replies), "of": len(self._problems) * self._n}
            finally:
                runner.run(_cancelled(waiting))
                runner.run(self._model.__aexit__(None, None, None))

    def _start_server(self) -> Iterator[Progress]:
        """Start the model's server for every task, if it has one."""
        server = server_of(self._model)
        if server is None:
            return
        tasks: list[Task] = []
        for problem in self._problems:
            if not any(problem.task is task for task in tasks):
                tasks.append(problem.task)
        for task in tasks:
            yield from server.start(task)

    async def _reply(self, p: int, n: int) -> Completion:
        """Return the model's n-th reply to a problem."""
        problem = self._problems[p]
        seed = seed_from(self._seed, problem.problem.id, n)
        try:
            return await complete(self._model, problem.request(seed, self._budget))
        except ModelFailure as failure:  # after the model's own retries
            message = f"sampling {self._model.title()} failed: {failure}"
            raise UserError(message, hint="run again") from None

    def _sample(self, p: int, reply: Completion) -> Sample:
        """Return a graded sample; one that reached its token limit is wrong."""
        problem = self._problems[p]
        grade = grade_turns(problem.task, problem.problem, [reply.answer])
        right = grade.correct and reply.stop == "end"
        tokens = reply.tokens or self._loaded.encode(reply)
        prompt = self._loaded.prompt(problem.request())
        if reply.prompt and [*reply.prompt] != prompt:
            # Training on them would raise the probability of replies to another prompt.
            raise UserError(
                f"{self._model.title()} read a prompt as {list(reply.prompt[:8])}…, "
                f"but the weights to train read {prompt[:8]}…",
                hint="the sampler must have the tokenizer and the chat template of the model",
            )
        return Sample(TokenExample(prompt, tokens), right, reply.thinking, reply.answer)

    @property
    def tokens(self) -> int:
        """Return the prompt and reply tokens of all samples."""
        return sum(len(sample.text) for sample in itertools.chain.from_iterable(self.samples))


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Write: TypeAlias = Callable[[Path], object]  # writes weights as they are now into a folder


@dataclass
class FreshSampler:
    """A sampler that is given the weights of each iteration of a training.

    A LoRA adapter is served as it is where the sampler can do that (`vllm`), so that its weights
    stay; other samplers get the whole weights, with the adapter merged into them.
    """

    model: Model  # that is asked
    weights: Path  # that the training started from
    folder: Path  # for the weights of an iteration, and for an adapter in a folder below
    write: Write  # the whole weights
    write_adapter: Write | None = None  # if an adapter is trained
    served: str = ""  # how: "adapter", or why not

    def start(self, task: Task) -> Generator[Progress, None, None]:
        """Start the sampler and find out whether it serves the adapter as it is."""
        sampler = None
        if self.write_adapter:
            sampler = self._write_adapter(self.folder / "adapter")
        if not isinstance(sampler, Served):
            return
        try:
            yield from sampler.start(task)
        except UserError as error:
            # vLLM has no LoRA for this architecture; whatever else is wrong will show again.
            self.served = f"merged weights, because the adapter can't be served: {error.what}"
        else:
            self.served = "adapter"

    def refreshed(self, iteration: int, temperature: float) -> Model:
        """Return the sampler with the weights as they are now."""
        # A server may still read the adapter of the iteration before.
        sampler = None
        if self.served == "adapter":
            sampler = self._write_adapter(self.folder / f"adapter{iteration % 2}")
        if sampler:
            return require(sampler, Sampled).at_temperature(temperature)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write(self.folder)
        write_card(self.weights, self.folder)
        load.cache_clear()  # the folder held other weights in the iteration before
        sampler = require(self.model, WithWeights).with_weights(self.folder)
        return require(sampler, Sampled).at_temperature(temperature)

    def _write_adapter(self, folder: Path) -> Model | None:
        """Write the adapter as it is now; return the sampler that serves it, or None."""
        assert self.write_adapter is not None
        sampler = require(self.model, WithWeights).with_adapter(self.weights, folder)
        if sampler:
            self.write_adapter(folder)
        return sampler
