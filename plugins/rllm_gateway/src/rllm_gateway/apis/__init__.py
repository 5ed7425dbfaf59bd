"""The supported APIs. They translate requests to `ModelRequest`, and responses to bytes."""

from rllm_gateway.apis.chat import ChatApi
from rllm_gateway.apis.completions import CompletionsApi
from rllm_gateway.apis.google import GenerateApi
from rllm_gateway.apis.messages import MessagesApi
from rllm_gateway.apis.responses import ResponsesApi
from rllm_gateway.apis.tokens import TokensApi

__all__ = ["ChatApi", "CompletionsApi", "GenerateApi", "MessagesApi", "ResponsesApi", "TokensApi"]
