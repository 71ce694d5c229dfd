"""Writes the log of a simulated production day: requests to a reasoning model at three efforts, as
a service that tries settings on its live traffic would have it.

    python benchmarks/production_day.py FOLDER [--requests 3000] [--distinct 600] [--seed 1]

The replies, their tokens and their seconds come from the pocket model, which runs here: effort low
is its style *short*, medium *plain* and high *wordy*. Simulated are only the traffic, with a rhythm
of 24 hours and prompts that repeat (the popularity of the r-th is r^-0.7), and the errors of a
server that is too busy at times. Each request goes to one of the efforts at random.

    day.jsonl       a line per request, in the shape of OpenAI's chat completions
    answers.jsonl   the right answers: ponder import day.jsonl --answers answers.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from ponder.core import Completion, Problem, Request
from ponder.models.pocket import Pocket
from ponder.models.pocket.codec import Style
from ponder.tasks.execution import Execution

EFFORTS: dict[str, Style] = {"low": "short", "medium": "plain", "high": "wordy"}
SIZES = {3: 0.3, 5: 0.3, 8: 0.25, 12: 0.15}  # fractions of the distinct prompts, by their steps
DAY = datetime(2026, 11, 17, tzinfo=UTC)
BUSIEST = 15  # hour of the day
ERRORS = 0.01  # fraction of requests
TASK = Execution(dictionary=16, per_turn=0)


def moments(number: int, rng: random.Random) -> list[datetime]:
    """Draw the moments of a day's requests: four times as many at its busiest hour as at night."""
    drawn: list[datetime] = []
    while len(drawn) < number:
        hour = rng.uniform(0, 24)
        busy = (1 + 0.6 * math.cos((hour - BUSIEST) / 24 * 2 * math.pi)) / 1.6
        if rng.random() < busy:
            drawn.append(DAY + timedelta(hours=hour))
    return sorted(drawn)


def distinct_problems(number: int, seed: int, rng: random.Random) -> list[Problem]:
    problems: list[Problem] = []
    for size, fraction in SIZES.items():
        wanted = math.ceil(number * fraction)
        problems += islice(TASK.problems(size, seed), wanted)
    rng.shuffle(problems)  # so that popular prompts have all sizes
    return problems[:number]


async def replies(problems: list[Problem], efforts: list[str], seed: int) -> list[Completion]:
    """Ask the pocket model each problem at its effort."""
    results: list[Completion | None] = [None] * len(problems)

    async def ask(model: Pocket, number: int, room: asyncio.Semaphore) -> None:
        async with room:
            request = Request.first_turn(TASK, problems[number], seed=seed + number)
            results[number] = await model.complete(request)

    for effort, style in EFFORTS.items():
        room = asyncio.Semaphore(32)
        async with Pocket(style=style) as model:
            numbers = [number for number, each in enumerate(efforts) if each == effort]
            await asyncio.gather(*[ask(model, number, room) for number in numbers])
    return [completion for completion in results if completion is not None]


def line(
    number: int, problem: Problem, effort: str, moment: datetime, completion: Completion
) -> dict[str, Any]:
    """Return a record of the log."""
    bill = completion.bill
    ended = moment + timedelta(seconds=bill.seconds)
    message = {
        "role": "assistant",
        "content": completion.answer,
        "reasoning_content": completion.thinking,
    }
    output = bill.thinking_tokens + bill.answer_tokens
    return {
        "id": f"req-{number}",
        "start_time": moment.isoformat(),
        "end_time": ended.isoformat(),
        "request": request(problem, effort),
        "response": {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": int(moment.timestamp()),
            "model": "pocket",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "stop" if completion.stop == "end" else "length",
                }
            ],
            "usage": {
                "prompt_tokens": bill.prompt_tokens,
                "completion_tokens": output,
                "total_tokens": bill.prompt_tokens + output,
                "completion_tokens_details": {"reasoning_tokens": bill.thinking_tokens},
            },
        },
    }


def request(problem: Problem, effort: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": problem.turns[0]}]
    if problem.system:
        messages.insert(0, {"role": "system", "content": problem.system})
    return {"model": "pocket", "messages": messages, "reasoning_effort": effort}


def busy(number: int, problem: Problem, effort: str, moment: datetime) -> dict[str, Any]:
    """Return the record of a request that the server refused."""
    error = {"message": "The engine is overloaded, please try again later", "code": 503}
    ended = moment + timedelta(seconds=0.2)
    return {
        "id": f"req-{number}",
        "start_time": moment.isoformat(),
        "end_time": ended.isoformat(),
        "request": request(problem, effort),
        "response": {"status_code": 503, "error": error},
    }


def write(folder: Path, number: int, distinct: int, seed: int) -> None:
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    problems = distinct_problems(distinct, seed, rng)
    popularity = list(accumulate(rank**-0.7 for rank in range(1, len(problems) + 1)))
    asked = rng.choices(problems, cum_weights=popularity, k=number)
    efforts = rng.choices(list(EFFORTS), k=number)
    completions = asyncio.run(replies(asked, efforts, seed))
    with (folder / "day.jsonl").open("w") as log:
        for index, moment in enumerate(moments(number, rng)):
            if rng.random() < ERRORS:
                record = busy(index, asked[index], efforts[index], moment)
            else:
                record = line(index, asked[index], efforts[index], moment, completions[index])
            log.write(json.dumps(record) + "\n")
    with (folder / "answers.jsonl").open("w") as answers:
        for problem in problems:
            [answer] = TASK.grade_turns(problem, [TASK.solve_turn(problem, 0)]).parsed
            record = {"prompt": problem.turns[0], "answer": answer, "size": problem.size}
            if problem.system:
                record["system"] = problem.system
            answers.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--distinct", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(options.folder, options.requests, options.distinct, options.seed)
