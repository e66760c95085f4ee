"""Where a request goes and with which key: from a request to one of pydantic-ai's models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.agents.provider import AgentError, AgentRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

_KEY_VARIABLES = {
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "cohere": "CO_API_KEY",
    "google-cloud": "GOOGLE_API_KEY",
    "heroku": "HEROKU_INFERENCE_KEY",
    "huggingface": "HF_TOKEN",
    "openai-responses": "OPENAI_API_KEY",
    "vercel": "VERCEL_AI_GATEWAY_API_KEY",
}
_NO_KEY = "no-key"


def key_variable(model: str) -> str:
    """The environment variable that holds the key for `model`."""
    prefix = model.partition(":")[0]
    return _KEY_VARIABLES.get(prefix, f"{prefix.upper().replace('-', '_')}_API_KEY")


def place(request: AgentRequest) -> str:
    """Where the request goes, for messages: without user names, keys and paths."""
    if request.base_url is None:
        return "the service"
    parts = urlsplit(request.base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def model_for(request: AgentRequest) -> Model[Any]:
    """The model that `request` names, with an HTTP client of its own: enter it to have that closed."""
    if request.base_url is not None and not request.base_url.startswith(("http://", "https://")):
        raise AgentError(
            f"base_url {request.base_url!r} for {request.model} must begin with http:// or https://"
        )
    try:
        if request.model.startswith("openai:"):
            return _openai(request)
        return _inferred(request)
    except ImportError as error:
        raise AgentError(
            f"model {request.model!r} needs a package that is not installed: {error}; "
            "pip install 'holdfast[agents]' brings the one for openai"
        ) from error


def _openai(request: AgentRequest) -> Model[Any]:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    base_url = request.base_url or os.environ.get("OPENAI_BASE_URL") or None
    key = request.api_key or os.environ.get("OPENAI_API_KEY") or None
    provider: Provider[Any]
    if base_url is not None:
        provider = OpenAICompatibleProvider("openai", base_url=base_url, api_key=key or _NO_KEY)
    elif key is not None:
        provider = OpenAIProvider(api_key=key)
    else:
        raise AgentError(
            f"model {request.model!r} needs a key: set OPENAI_API_KEY, or give a base_url that needs none"
        )
    name = request.model.partition(":")[2]
    # A stream that just stops is a lost connection, not the end of the text.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name, provider=provider, profile=whole)


def _inferred(request: AgentRequest) -> Model[Any]:
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider, infer_provider_class

    given = {"base_url": request.base_url, "api_key": request.api_key}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return infer_model(request.model, provider_factory=infer_provider)
    try:
        return infer_model(request.model, provider_factory=lambda name: infer_provider_class(name)(**given))
    except TypeError as error:
        raise AgentError(
            f"model {request.model!r} does not take {' or '.join(given)} from a workflow"
        ) from error
