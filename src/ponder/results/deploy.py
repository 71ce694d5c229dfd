"""`deploy`: shows how to send the requests of a setting from another program.

The body is the one that Ponder sent, without the messages and without what differs between
attempts. Its fields become a call of the provider's Python package and an entry for LiteLLM. Fields
that these have no argument for go into `extra_body`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponder.core import Cell, Plugin, Request
from ponder.core.capabilities import BudgetsThinking
from ponder.core.nouns import Prices
from ponder.core.settings import toml
from ponder.methods.budget_force import BudgetForce
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.providers import PROVIDERS
from ponder.models.imported import Imported
from ponder.study.cell import StudyCell
from ponder.study.prices import FoundPrices

# Fields of a request that hold the prompt, or that differ between attempts.
VARYING = (
    "messages",
    "input",
    "contents",
    "system",
    "instructions",
    "systemInstruction",
    "seed",
    "stream",
    "stream_options",
)
# Arguments of the OpenAI package's chat completions, and of LiteLLM's.
CHAT_ARGUMENTS = (
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "reasoning_effort",
    "stop",
)
# Providers that LiteLLM calls by another name; an OpenAI-compatible server is `openai`.
LITELLM_NAMES = {
    "google": "gemini",
    "vllm": "hosted_vllm",
    "sglang": "openai",
    "llama.cpp": "openai",
}


@dataclass(frozen=True)
class Deployment:
    """A setting as a study table, a request body, a LiteLLM entry and a line of Python."""

    study: str  # its [[model]] table
    note: str = ""  # on methods, which the request alone doesn't apply
    url: str = ""  # "" for a model that no server answers for, or from a log
    body: Mapping[str, Any] | None = None
    litellm: str = ""  # an entry of `model_list`, as YAML
    python: str = ""

    def sections(self) -> list[tuple[str, str]]:
        """Return titles and texts."""
        if self.body is None:
            return [("In a study", self.study)]
        body = json.dumps(self.body, indent=2, ensure_ascii=False)
        if not self.url:
            return [("As in the log", body)]
        sections = [(f"POST {self.url}", body), ("LiteLLM", self.litellm), ("Python", self.python)]
        if self.note:
            sections.append(("Note", self.note))
        return sections


def deploy(cell: StudyCell) -> Deployment:
    """Return how to deploy the model of a cell with its settings."""
    model = cell.model
    method_names = []  # of those that are more than a setting of the request
    for method in cell.methods:
        with_budget = None
        if isinstance(method, BudgetForce) and isinstance(model, BudgetsThinking):
            with_budget = model.with_think(method.think)
        if with_budget is None:
            method_names.append(method.plugin_name())
        else:
            model = with_budget
    study = _model_table(cell)
    if isinstance(model, Imported):
        return Deployment(study, body={"model": model.id, **model.settings})
    if not isinstance(model, Endpoint):
        return Deployment(study)
    problem = next(iter(cell.asked()))
    preview = model.preview(Request.first_turn(cell.task, problem))
    body = {name: value for name, value in preview.body.items() if name not in VARYING}
    note = ""
    if method_names:
        note = f"this is one request; the method {', '.join(method_names)} is applied around it"
    return Deployment(study, note, preview.url, body, _litellm(model, body), _python(model, body))


def _model_table(cell: Cell) -> str:
    """Return the model and its methods as they stand in a study file."""
    lines = ["[[model]]"]
    for name, value in _written(cell.model).items():
        lines.append(f"{name} = {toml(value)}")
    methods = [_written(method) for method in cell.methods]
    if methods:
        lines.append(f"method = {toml(methods)}")
    return "\n".join(lines)


def _written(settings: Plugin | Prices) -> dict[str, Any]:
    """Return the settings that are not defaults; of a plugin, its name too."""
    table: dict[str, Any] = {}
    if isinstance(settings, Plugin):
        table["name"] = settings.plugin_name()
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        is_default = value == field.default
        if field.default_factory is not dataclasses.MISSING:
            is_default = value == field.default_factory()
        if is_default or isinstance(value, FoundPrices):
            continue
        if isinstance(value, Plugin | Prices):
            value = _written(value)
        table[field.name] = value
    return table


def _litellm(model: Endpoint, body: Mapping[str, Any]) -> str:
    """Return an entry of LiteLLM's `model_list`."""
    provider = model.provider_name
    name = LITELLM_NAMES.get(provider, provider or "openai")
    parameters: dict[str, Any] = {"model": f"{name}/{model.id}"}
    if model.key:
        parameters["api_key"] = f"os.environ/{_variable(model.key)}"
    if not provider or model.urls[0] != PROVIDERS[provider].url:
        parameters["api_base"] = model.urls[0]
    if model.protocol_name == "chat":
        arguments = _split(body, CHAT_ARGUMENTS)
        del arguments["model"]
        parameters |= arguments
    else:
        if model.budget is not None:
            parameters["max_tokens"] = model.budget
        for name in ("temperature", "top_p"):
            if getattr(model, name) is not None:
                parameters[name] = getattr(model, name)
        if model.effort is not None:
            parameters["reasoning_effort"] = model.effort
        if model.think is not None:
            parameters["thinking"] = {"type": "enabled", "budget_tokens": model.think}
        elif model.thinking is False:
            parameters["thinking"] = {"type": "disabled"}
    lines = [f"- model_name: {json.dumps(model.label or model.id)}", "  litellm_params:"]
    for name, value in parameters.items():
        lines.append(f"    {name}: {json.dumps(value)}")  # JSON is YAML
    return "\n".join(lines)


def _python(model: Endpoint, body: Mapping[str, Any]) -> str:
    """Return a call of the provider's own package."""
    key = '"none"'  # the packages want one even where the server doesn't
    if model.key:
        key = f'os.environ["{_variable(model.key)}"]'
    url = model.urls[0]
    if model.protocol_name == "gemini":
        address, _, version = url.rpartition("/")
        options = {"base_url": address, "api_version": version}
        config = body.get("generationConfig", {})
        return (
            f"client = genai.Client(api_key={key}, http_options={options})\n"
            f"client.models.generate_content(\n"
            f"    model={model.id!r}, contents=contents, config={config}\n)"
        )
    if model.protocol_name == "anthropic":
        client = f"client = Anthropic(api_key={key}, base_url={url.removesuffix('/v1')!r})"
        return f"{client}\nclient.messages.create(messages=messages, {_arguments(body)})"
    client = f"client = OpenAI(api_key={key}, base_url={url!r})"
    if model.protocol_name == "responses":
        return f"{client}\nclient.responses.create(input=messages, {_arguments(body)})"
    arguments = _arguments(_split(body, CHAT_ARGUMENTS))
    return f"{client}\nclient.chat.completions.create(messages=messages, {arguments})"


def _arguments(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _split(body: Mapping[str, Any], arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a body as keyword arguments; those without one go into `extra_body`."""
    keywords: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    for name, value in body.items():
        if name in arguments:
            keywords[name] = value
        else:
            extra_body[name] = value
    if extra_body:
        keywords["extra_body"] = extra_body
    return keywords


def _variable(key: str) -> str:
    """Return the name of the environment variable that holds a key."""
    return key.strip("${}")
