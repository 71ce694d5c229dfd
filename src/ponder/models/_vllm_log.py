"""Why a vLLM server ended, from its log.

The last lines only say that an engine failed. The cause is the first exception in the log, mostly a worker's, before
the exceptions of the processes that waited for it.
"""

from __future__ import annotations

import re

# (Worker pid=17) ERROR 11-17 12:10:39 [executor.py:953] ValueError: …
_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)")
_FOLLOWS = re.compile(r"initialization failed|failed to start|EngineDeadError|See (?:the )?(?:stack trace|root cause)")
_HINTS = (
    (r"[Aa]ddress already in use", "leave out `port`, and a free one is found"),
    (
        r"unrecognized arguments|invalid choice|argument --",
        "`args` holds flags of vLLM: args = { max_model_len = 8192 }",
    ),
    (r"attention configuration|head size", "this vLLM has no attention kernel for these weights on this machine"),
    (r"max_model_len|max seq len|context length", "args = { max_model_len = 8192 }"),
    (
        r"out of memory|memory for|[Ff]ree memory|KV cache|cache blocks|[Aa]vailable memory|gpu_memory_utilization",
        "args = { gpu_memory_utilization = 0.8, max_model_len = 8192 }, or more GPUs; on a CPU $VLLM_CPU_KVCACHE_SPACE",
    ),
    (
        r"not recognize this architecture|not supported|[Ss]afetensor|deserializing|state_dict|Repo id|config\.json",
        "`id` must be weights that this vLLM can load: a folder in the Hugging Face format, or org/name on the hub",
    ),
)


def cause(log: str, code: int | None) -> tuple[str, str]:
    """What went wrong, and a hint."""
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    why = _first_exception(lines) or _ending(lines, code)
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, why)), "its log has the rest")
    return why[:400], hint


def _first_exception(lines: list[str]) -> str:
    for n, line in enumerate(lines):
        if line.startswith("api_server.py: error: "):
            return line.removeprefix("api_server.py: error: ")
        if (match := _EXCEPTION.match(line)) and not _FOLLOWS.search(line):
            if "validation error" in line and n + 1 < len(lines):
                return lines[n + 1].strip().removeprefix("Value error, ")
            return f"{match[1]}: {match[2]}"
    return ""


def _ending(lines: list[str], code: int | None) -> str:
    if code in (137, -9):
        return "it was killed (SIGKILL), which is what Linux does to a process when memory runs out: out of memory"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
    return f"it ended with code {code}: {last}"
