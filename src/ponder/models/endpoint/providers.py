"""Determines who runs an endpoint: a company with an API, or a server program of your own.

One model is served in many places, and each place has its own protocol, its own name for the dial
of thinking, and its own prices. The provider is certain for the host of a company's API. For a
server of your own, the study says it: `provider = "vllm"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

ProtocolName: TypeAlias = Literal["chat", "responses", "anthropic", "gemini"]
ProviderName: TypeAlias = Literal[
    "openai",
    "anthropic",
    "google",
    "xai",
    "openrouter",
    "deepseek",
    "vllm",
    "sglang",
    "llama.cpp",
]


@dataclass(frozen=True)
class Provider:
    """A company's API, or a server program."""

    protocols: tuple[ProtocolName, ...]  # the first is the default
    host: str = ""  # of its API, subdomains included; "" for a program that runs anywhere
    url: str = ""  # of its API, in its default protocol
    key_form: str = ""  # how its API keys begin, if no other provider's do


PROVIDERS: dict[str, Provider] = {
    "openai": Provider(
        ("chat", "responses"), "api.openai.com", "https://api.openai.com/v1", "sk-proj-"
    ),
    "anthropic": Provider(
        ("anthropic", "chat"), "api.anthropic.com", "https://api.anthropic.com/v1", "sk-ant-"
    ),
    "google": Provider(
        ("gemini", "chat"),
        "generativelanguage.googleapis.com",
        "https://generativelanguage.googleapis.com/v1beta",
        "AIza",
    ),
    "xai": Provider(("chat", "responses"), "api.x.ai", "https://api.x.ai/v1", "xai-"),
    "openrouter": Provider(
        ("chat", "responses", "anthropic"),
        "openrouter.ai",
        "https://openrouter.ai/api/v1",
        "sk-or-",
    ),
    "deepseek": Provider(("chat", "anthropic"), "api.deepseek.com", "https://api.deepseek.com/v1"),
    "vllm": Provider(("chat", "responses", "anthropic")),
    "sglang": Provider(("chat", "responses", "anthropic")),
    "llama.cpp": Provider(("chat", "responses", "anthropic")),
}


@lru_cache  # called for every request
def provider_of(url: str) -> str:
    """Return the provider whose API has this address; "" if it is none of them."""
    host = _host(url)
    for name, provider in PROVIDERS.items():
        if provider.host and (host == provider.host or host.endswith(f".{provider.host}")):
            return name
    return ""


def protocol_of(provider: str, url: str) -> ProtocolName:
    """Return the protocol that a provider speaks at an address."""
    if not provider:
        return "chat"
    # Google's compatibility layer is a folder of its native API.
    if provider == "google" and urlsplit(url).path.rstrip("/").endswith("/openai"):
        return "chat"
    return PROVIDERS[provider].protocols[0]


def provider_of_key(key: str) -> str:
    """Return the provider whose API keys have this form; "" if it isn't certain."""
    for name, provider in PROVIDERS.items():
        if provider.key_form and key.startswith(provider.key_form):
            return name
    return ""


def is_private(url: str) -> bool:
    """Return whether an address is on this machine or in a private network."""
    host = _host(url)
    try:
        return ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal"))


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
