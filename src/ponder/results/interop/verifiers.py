"""What the packages that `ponder export --format verifiers` writes are made of; needs verifiers 0.4
or later.

A problem is played turn by turn, as Ponder asks it, and graded by its own task. A reply that was
cut is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from verifiers.v1.runtimes import SubprocessConfig

from ponder.results.interop.environment import Record, decode, read


class ProblemData(vf.TaskData):  # type: ignore[misc]
    """A problem as verifiers passes it around."""

    record: str  # as JSON: the problem, and the settings of its task
    size: int


class ProblemTask(vf.Task[ProblemData]):  # type: ignore[misc]
    @property
    def key(self) -> str:
        return str(self.data.id)

    @property
    def record(self) -> Record:
        return decode(self.data.record)

    @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
    async def correct(self, trace: vf.Trace) -> float:
        replies = [str(message.content or "") for message in trace.assistant_messages]
        problem = self.record.problem
        if trace.is_truncated or len(replies) < len(problem.turns):
            return 0.0
        return float(self.record.grade(replies).correct)

    async def validate(self, runtime: Any) -> bool:  # noqa: ARG002 the interface
        """Return whether the task's own solution is graded right."""
        return self.record.solution().correct


class Config(vf.TasksetConfig):  # type: ignore[misc]
    split: Literal["train", "test"] = "train"
    """`test` has the problems that the study asks."""


class Problems(vf.Taskset[ProblemTask, Config]):  # type: ignore[misc]
    folder = Path()

    def load(self) -> Iterator[ProblemTask]:
        for record in read(self.folder, self.config.split):
            problem = record.problem
            history = [{"role": m.role, "content": m.content} for m in problem.history]
            prompt = (
                [*history, {"role": "user", "content": problem.turns[0]}]
                if history
                else problem.turns[0]
            )
            data = ProblemData(
                id=f"{record.task['name']}/{problem.size}/{problem.id}",
                prompt=prompt,
                system_prompt=problem.system or None,
                record=record.text(),
                size=problem.size,
            )
            yield ProblemTask(data, self.config.task)


class EnvironmentConfig(vf.EnvConfig):  # type: ignore[misc]
    # A chat needs no sandbox: a plain model call in a process of this machine.
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=SubprocessConfig())


class Environment(vf.Env[EnvironmentConfig]):  # type: ignore[misc]
    async def run(self, task: ProblemTask, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            for message in task.record.problem.turns[1:]:
                if segment.terminated:
                    return
                segment = await interaction.turn(message)
