"""Asks `mine`: say here in one sentence what answers.

As it stands it answers with the last words of the question. Write your own `complete`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.core import Bill, Completion, Model, Request


@dataclass
class Mine(Model):
    words: int = 3  # words in an answer; each field is a key in a study's [[model]]

    async def complete(self, request: Request) -> Completion:
        answer = " ".join(request.messages[-1].content.split()[-self.words :])
        prompt_tokens = sum(len(m.content.split()) for m in request.messages)
        return Completion(
            "", answer, "end", Bill(prompt_tokens, 0, self.words, counted_by="estimate")
        )
