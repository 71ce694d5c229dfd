"""The floor: a bare aiohttp loop that asks, and appends each reply to a JSONL file.

No grading, no store.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import aiohttp


async def work(
    session: aiohttp.ClientSession, url: str, prompts: Iterator[str], out: TextIO
) -> None:
    for prompt in prompts:
        asked = {"model": "served", "messages": [{"role": "user", "content": prompt}]}
        async with session.post(url, data=json.dumps(asked).encode()) as response:
            reply = json.loads(await response.read())
        out.write(json.dumps(reply["choices"][0]["message"]) + "\n")


async def main(url: str, concurrency: int, prompts: Iterator[str], out: TextIO) -> None:
    connector = aiohttp.TCPConnector(limit=concurrency)
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(concurrency):
            group.create_task(work(session, url, prompts, out))


if __name__ == "__main__":
    address, number, prompt_file = sys.argv[1:]
    prompts_left = (
        json.loads(line)["question"] for line in Path(prompt_file).read_text().splitlines()
    )
    with Path("floor.jsonl").open("w") as file:
        asyncio.run(main(f"{address}/chat/completions", int(number), prompts_left, file))
