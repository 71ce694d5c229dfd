"""The cause of a failed start, from real logs of vLLM 0.32.0, shortened to the lines that matter."""

from __future__ import annotations

import pytest

from ponder.models.vllm.server import cause

ENGINE = """(EngineCore pid=24) ERROR 11-17 12:10:44 [core.py:1510] EngineCore failed to start.
(EngineCore pid=24) ERROR 11-17 12:10:44 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=24) ERROR 11-17 12:10:44 [core.py:1510] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
DAMAGED = (
    """(APIServer pid=19) WARNING 11-17 12:03:08 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.
(Worker pid=48) ERROR 11-17 12:10:39 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=48) ERROR 11-17 12:10:39 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=48) ERROR 11-17 12:10:39 [multiproc_executor.py:953]     with safe_open(st_file, framework="pt") as f:
(Worker pid=48) ERROR 11-17 12:10:39 [multiproc_executor.py:953] safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered
"""
    + ENGINE
)
MEMORY = (
    """(Worker pid=28) ERROR 11-17 12:14:04 [multiproc_executor.py:1063] ValueError: Available memory on node 0 (13.53/18.21 GiB) on kv cache allocation is less than requested memory for kv (400.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes.
(EngineCore pid=27) ERROR 11-17 12:14:04 [core.py:1510] RuntimeError: Worker failed with error 'Available memory on node 0', please check the stack trace above for the root cause
"""
    + ENGINE
)
UNKNOWN = """pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The checkpoint you are trying to load has model type `nosuch` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint.
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
FLAG = "                     [model_tag]\napi_server.py: error: unrecognized arguments: --no-such-flag\n"
PORT = "    sock.bind(addr)\nOSError: [Errno 98] Address already in use\n"
HEADS = "(Worker pid=3) ERROR 11-17 12:30:00 [x.py:1] RuntimeError: Unsupported CPU attention configuration: head_dim=40 isa=1 kv_cache_idx=0\n"


@pytest.mark.parametrize(
    ("log", "code", "why", "hint"),
    [
        (DAMAGED, 1, "SafetensorError: Error while deserializing header", "can load"),
        (MEMORY, 1, "ValueError: Available memory on node 0 (13.53", "VLLM_CPU_KVCACHE_SPACE"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", 1, "OutOfMemoryError: CUDA", "gpu_memory"),
        (UNKNOWN, 1, "The checkpoint you are trying to load has model type `nosuch`", "can load"),
        (FLAG, 2, "unrecognized arguments: --no-such-flag", "`args`"),
        (PORT, 1, "OSError: [Errno 98] Address already in use", "`port`"),
        (HEADS + ENGINE, 1, "RuntimeError: Unsupported CPU attention", "no attention kernel"),
        ("INFO loading\n", 137, "out of memory", "gpu_memory_utilization"),
        ("INFO loading\n\n", 3, "it ended with code 3: INFO loading", "log"),
        ("", 0, "its log is empty", "log"),
    ],
)  # fmt: skip
def test_cause(log: str, code: int, why: str, hint: str) -> None:
    found, hinted = cause(log, code)
    assert why in found
    assert hint in hinted
