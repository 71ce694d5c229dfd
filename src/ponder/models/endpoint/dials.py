"""Translates the dial of thinking into the fields of a chat request, for each provider.

`effort`, `think` (a budget of thinking tokens) and `thinking` (on or off) mean the same everywhere,
but each provider has its own fields, and few have all three. The other protocols belong to one
provider each and have theirs in their own files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ponder.core import UserError

# Servers that end the thinking at its budget and make the model answer. Other providers take a
# budget for a target, which replies may exceed.
HARD_BUDGETS = ("vllm", "sglang", "llama.cpp")
ANTHROPIC_MIN_THINK = 1024  # tokens
# OpenAI's efforts, the lowest first; xAI and Google's OpenAI layer have some of them.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# The efforts that stand for thinking on and off where a provider has only efforts.
EFFORT_ON = "medium"
EFFORT_OFF = "none"


class Dial(NamedTuple):
    """How hard a model may think; None where the study doesn't say."""

    effort: str | None = None
    think: int | None = None  # tokens
    thinking: bool | None = None

    def refuse(self, route: str, *names: str, hint: str) -> None:
        """Raise `UserError` if the study sets one of these dials, none of which the route has."""
        for name in names:
            if getattr(self, name) is not None:
                raise UserError(f"{route} has no dial `{name}`", hint=hint)

    def check_thinking_off(self, *names: str) -> None:
        """Raise `UserError` if thinking is off and one of these dials says how long to think."""
        if self.thinking is not False:
            return
        for name in names:
            value = getattr(self, name)
            if value is not None:
                message = f"thinking = false and {name} = {value!r} contradict each other"
                raise UserError(message, hint="leave out one of them")


def effort_only(dial: Dial, route: str, instead: str) -> str | None:
    """Return the effort to send to a route that has efforts alone; None to send none.

    `thinking` is sent as an effort. `instead` is the hint for a study that sets `think`.
    """
    dial.check_thinking_off("effort", "think")
    dial.refuse(route, "think", hint=instead)
    if dial.effort is not None and dial.effort not in EFFORTS:
        hint = f"effort = {', '.join(EFFORTS)}; few models have all of them"
        raise UserError(f"{route} has no effort {dial.effort!r}", hint=hint)
    if dial.thinking is None:
        return dial.effort
    if dial.thinking:
        return dial.effort or EFFORT_ON
    return EFFORT_OFF


def openai_effort(provider: str, dial: Dial) -> str | None:
    """Return the effort to send to OpenAI or xAI, which have efforts alone; None to send none."""
    name = {"openai": "OpenAI", "xai": "xAI"}[provider]
    return effort_only(dial, name, 'effort = "low"; a `budget` limits the whole reply')


def chat_fields(provider: str, dial: Dial) -> dict[str, Any]:
    """Return the fields of a chat request; raise `UserError` if the provider has no such dial."""
    if dial == Dial():
        return {}
    dial.check_thinking_off("effort", "think")
    if provider in ("vllm", "sglang", "llama.cpp"):
        return _self_hosted(provider, dial)
    if provider == "openrouter":
        return _openrouter(dial)
    if provider == "google":
        return _google(dial)
    if provider == "anthropic":
        return _anthropic(dial)
    if provider == "deepseek":
        return _deepseek(dial)
    fields: dict[str, Any] = {}
    if provider in ("openai", "xai"):
        effort = openai_effort(provider, dial)
    else:
        hint = 'provider = "vllm", "sglang" or "llama.cpp" says which server it is'
        dial.refuse("a server that Ponder doesn't know", "think", "thinking", hint=hint)
        effort = dial.effort
    if effort is not None:
        fields["reasoning_effort"] = effort
    return fields


def _self_hosted(provider: str, dial: Dial) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    template: dict[str, Any] = {}
    if dial.think is not None:
        if provider == "vllm":
            fields["thinking_token_budget"] = dial.think
        elif provider == "sglang":
            # Enforced by a server that was started with --enable-strict-thinking.
            fields["custom_params"] = {"thinking_budget": dial.think}
        else:
            fields["thinking_budget_tokens"] = dial.think
    if dial.thinking is not None:
        # Qwen's and most other templates read the first, DeepSeek's and Granite's the second.
        template["enable_thinking"] = dial.thinking
        template["thinking"] = dial.thinking
    if dial.effort is not None:
        if provider == "llama.cpp":
            template["reasoning_effort"] = dial.effort
        else:
            fields["reasoning_effort"] = dial.effort
    if template:
        fields["chat_template_kwargs"] = template
    return fields


def _openrouter(dial: Dial) -> dict[str, Any]:
    if dial.effort is not None and dial.think is not None:
        message = "OpenRouter takes an effort or a number of thinking tokens, not both"
        raise UserError(message, hint="leave out `effort` or `think`")
    reasoning: dict[str, Any] = {}
    if dial.effort is not None:
        reasoning["effort"] = dial.effort
    if dial.think is not None:
        reasoning["max_tokens"] = dial.think
    if dial.thinking is not None:
        reasoning["enabled"] = dial.thinking
    return {"reasoning": reasoning}


def _google(dial: Dial) -> dict[str, Any]:
    if dial.think is None:
        effort = effort_only(dial, "Google's OpenAI layer", "")
        return {} if effort is None else {"reasoning_effort": effort}
    dial.refuse("a request with `think` to Google", "effort", "thinking", hint="set one of them")
    config = {"thinking_budget": dial.think, "include_thoughts": True}
    return {"extra_body": {"google": {"thinking_config": config}}}


def _anthropic(dial: Dial) -> dict[str, Any]:
    native = 'protocol = "anthropic", with url = "https://api.anthropic.com/v1"'
    # Accepted and ignored there, so that two efforts would be one model drawn twice.
    dial.refuse("Anthropic's OpenAI layer", "effort", hint=native)
    dial.refuse("Anthropic's OpenAI layer", "thinking", hint=native)
    if dial.think is None:
        return {}
    check_anthropic_think(dial.think)
    return {"thinking": {"type": "enabled", "budget_tokens": dial.think}}


def check_anthropic_think(tokens: int) -> None:
    """Raise `UserError` if Anthropic refuses a budget for thinking."""
    if tokens < ANTHROPIC_MIN_THINK:
        message = f"think = {tokens} is below Anthropic's minimum of {ANTHROPIC_MIN_THINK} tokens"
        raise UserError(message, hint=f"think = {ANTHROPIC_MIN_THINK}, or thinking = false")


def _deepseek(dial: Dial) -> dict[str, Any]:
    dial.refuse("DeepSeek", "think", hint="thinking = false, or a `budget` for the whole reply")
    fields: dict[str, Any] = {}
    if dial.effort is not None:
        fields["reasoning_effort"] = dial.effort
    if dial.thinking is not None:
        state = "enabled" if dial.thinking else "disabled"
        fields["thinking"] = {"type": state}
    return fields
