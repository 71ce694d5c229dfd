"""Code that comes with weights or a dataset is never run, and nobody is asked whether it may."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponder.core.plugins import HERE

LOADERS = {"from_pretrained", "from_config", "load_dataset", "pipeline"}
# their `from_pretrained` reads data only
RUN_NO_CODE = {"Tokenizer", "GenerationConfig", "PeftModel"}

LOADING = """
import sys
from pathlib import Path
from ponder.core import Request, Source, UserError
from ponder.models._torch_engine import load_anew, load_light, prompt_tokens
from ponder.rewards._weights import mean_states
from ponder.rewards.reasonflux import Reasonflux
from ponder.rewards.shepherd import Shepherd
from ponder.tasks.chain_sum import ChainSum

folder = sys.argv[1]
source = Source(Path(folder))
request = Request.first_turn(ChainSum(), next(ChainSum().problems(2, seed=1)))
for load in (
    lambda: load_anew(source),
    lambda: load_light(source),
    lambda: prompt_tokens(source, request),
    lambda: mean_states(folder)(["a text"]),
    lambda: Shepherd(id=folder).loaded,
    lambda: Reasonflux(id=folder).loaded,
):
    try:
        load()
    except Exception as error:
        print("REFUSED", error)
print("DONE")
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_weights_with_code_of_their_own_are_refused_without_a_question(tmp_path) -> None:
    pytest.importorskip("torch")
    mark = tmp_path / "owned"
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "modeling.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nclass Config: pass\nclass Model: pass\n"
    )
    classes = {
        "AutoConfig": "modeling.Config",
        "AutoModel": "modeling.Model",
        "AutoModelForCausalLM": "modeling.Model",
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": classes}))
    tokenizer = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["modeling.Model", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (tmp_path / "loading.py").write_text(LOADING)
    shown = on_a_terminal([sys.executable, str(tmp_path / "loading.py"), str(folder)], b"y\n" * 50)
    assert "DONE" in shown, shown
    assert not mark.exists(), shown
    assert "[y/N]" not in shown
    assert "Ponder runs no code that comes with weights" in shown


def on_a_terminal(command: list[str], typed: bytes) -> str:
    """Run a command on a pseudo-terminal on which this was typed; return what it shows."""
    import pty

    process, terminal = pty.fork()
    if not process:
        os.environ["HF_HOME"] = str(Path(command[-1]).parent / "hub")
        os.execv(command[0], command)
    os.write(terminal, typed)
    shown = b""
    while True:
        try:
            received = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not received:
            break
        shown += received
    os.waitpid(process, 0)
    os.close(terminal)
    return shown.decode("utf-8", "replace")


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Every call of something that may load foreign code: its place, the call, and what it is
    called on.
    """
    for path in sorted(HERE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in LOADERS:
                yield f"{path.relative_to(HERE)}:{node.lineno}", node, ast.unparse(called.value)
            elif isinstance(called, ast.Name) and called.id in LOADERS:
                yield f"{path.relative_to(HERE)}:{node.lineno}", node, ""


def test_whatever_loads_weights_or_datasets_says_that_it_trusts_no_code() -> None:
    checked = 0
    for place, call, loader in calls():
        if loader in RUN_NO_CODE:
            continue
        trusted = [keyword.value for keyword in call.keywords if keyword.arg == "trust_remote_code"]
        assert [ast.unparse(value) for value in trusted] == ["False"], place
        checked += 1
    assert checked > 8
