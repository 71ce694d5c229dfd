"""Made the logs in this folder: run it with inspect-ai 0.3.285 and lm-eval 0.4.13 installed, in an
empty folder.

`python make.py inspect` writes the logs of Inspect, `python make.py lm-eval` the samples of
lm-eval. The replies are scripted; the logs are what the two programs write. Problem 3 is cut at its
budget, the first try at problem 4 crashes, and the scorer `steps` doesn't score problem 5.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def inspect() -> None:
    from inspect_ai import Task, task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ContentReasoning,
        ContentText,
        ModelOutput,
        ModelUsage,
        get_model,
    )
    from inspect_ai.scorer import Score, accuracy, match, scorer
    from inspect_ai.solver import generate, solver

    def output(
        text: str, thinking: str = "", stop: str = "stop", tokens: int = 6, thought: int = 0
    ) -> ModelOutput:
        content = (
            [ContentReasoning(reasoning=thinking), ContentText(text=text)] if thinking else text
        )
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=content), stop_reason=stop
        )
        made = ModelOutput(model="mockllm/model", choices=[choice])
        made.usage = ModelUsage(
            input_tokens=20,
            output_tokens=tokens,
            total_tokens=20 + tokens,
            reasoning_tokens=thought,
        )
        return made

    def reply(messages, tools, choice, config) -> ModelOutput:
        a = int(re.search(r"(\d+) \+", messages[-1].text)[1])
        if a == 3:
            return output("I think it is", "three plus three", "max_tokens", 64, 60)
        if a == 5:
            return output("is it 9?")
        return output(f"{a} + {a} = {2 * a}", f"double {a} is {2 * a}", tokens=12, thought=5)

    @scorer(metrics=[accuracy()])
    def steps():
        async def score(state, target) -> Score:
            if "?" in state.output.completion:
                return Score.unscored()
            return Score(value=0.5 if "+" in state.output.completion else 1)

        return score

    @solver
    def crash():
        async def solve(state, generate):
            if state.sample_id == 4 and state.epoch == 1:
                raise RuntimeError("the sandbox died")
            return state

        return solve

    @task
    def sums(ids: list[int]) -> Task:
        samples = [
            Sample(
                id=i,
                input=f"What is {i} + {i}?",
                target=str(2 * i),
                metadata={"level": f"Level {1 + i // 3}"},
            )
            for i in ids
        ]
        scorers = [match(numeric=True), steps()]
        return Task(
            MemoryDataset(samples, name="sums"), solver=[crash(), generate()], scorer=scorers
        )

    for form, ids, epochs, temperature in (
        ("eval", [1, 3, 4, 5], 2, 0.6),
        ("json", [1, 5], 1, 1.0),
    ):
        model = get_model("mockllm/model", custom_outputs=reply)
        more = {"fail_on_error": False, "max_samples": 1, "display": "none", "max_tokens": 64}
        evaluate(
            sums(ids),
            model=model,
            log_dir=".",
            log_format=form,
            epochs=epochs,
            temperature=temperature,
            **more,
        )


TASK = r"""
task: tiny_sums
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\n\n"], max_gen_toks: 32}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - {name: strict, filter: [{function: take_first}]}
  - name: last-number
    filter: [{function: regex, regex_pattern: "(-?\\d+)", group_select: -1}, {function: take_first}]
"""
REPLIES = {
    "1 + 1": "2",
    "2 + 3": "<think>Two and three.</think>It is 5",
    "12 + 30": "It is 41",
    "10 + 11": "hm",
}


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        text = next(reply for problem, reply in REPLIES.items() if f"is {problem}?" in asked)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        body = json.dumps({"id": "1", "object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def lm_eval() -> None:
    docs = [
        {
            "question": f"What is {p}?",
            "answer": str(sum(map(int, p.split(" + ")))),
            "level": 1 + (len(p) > 5),
        }
        for p in REPLIES
    ]
    Path("data.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    Path("tiny_sums.yaml").write_text(TASK)
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    about = ["--model", "local-chat-completions", "--model_args", f"model=tiny-chat,base_url={url}"]
    more = ["--tasks", "tiny_sums", "--include_path", ".", "--log_samples", "--output_path", "out"]
    subprocess.run(
        [Path(sys.executable).with_name("lm_eval"), "run", *about, *more, "--apply_chat_template"],
        check=True,
    )


{"inspect": inspect, "lm-eval": lm_eval}[sys.argv[1]]()
