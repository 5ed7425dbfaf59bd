"""Renderers: messages to tokens and tokens to replies, for one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.data.messages import Message, Response, Tool

    TokenIds = Sequence[int] | NDArray[np.int32]


AUTO_RENDERER = "rllm-renderers/auto"
"""The default renderer, if its package is installed. It uses the chat template for models that it does not know."""


class Renderer(Protocol):
    """Results depend on the arguments only. What the model sampled is never tokenised again."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply."""
        ...

    @property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """The tokens before and after a model's thoughts, which are cut out of later prompts.

        None when this model has no token of its own for each, or where `bridge` knows itself which thoughts to keep.
        """
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> NDArray[np.int32]:
        """(n,) int32 tokens of a conversation that starts with `messages`, up to where the model's reply begins.

        Raises:
            RolloutError: the model's template cannot show such messages, or cannot show tools.
        """
        ...

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> NDArray[np.int32] | None:
        """(n,) int32 tokens of the next prompt: `prompt_ids` and `response_ids` unchanged, and behind them `messages`.

        The end of the model's turn stands between them; a stop token that was sampled is not repeated. Thoughts that
        the reply leaves open are closed there: such tokens were not sampled, so they are the prompt's. None: this
        model's template rewrites what came before, so the conversation has to be rendered anew.
        """
        ...

    def response_ids(self, text: str) -> NDArray[np.int32]:
        """(n,) int32 tokens of a reply that is known as text alone, with the stop token that ends it.

        What was sampled may be other tokens of the same text: hand on the sampled ones where there are any.
        """
        ...

    def text(self, token_ids: TokenIds) -> str:
        """The words of a reply, without special tokens."""
        ...

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """The text of each token as it stands in a text, special tokens included; bytes that are no UTF-8 by themselves
        as U+FFFD. For people: what is shown beside a token."""
        ...

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Take apart the tokens sampled after `prompt_ids`. Never raises: `Response` reports unreadable parts.

        `tools` are the prompt's tools: some models write arguments without quotes, and the schema says which are text.
        A reply has no calls if `tools` is empty: `Response.content` then contains all that the model said.
        """
        ...


@runtime_checkable
class StreamingRenderer(Renderer, Protocol):
    """A renderer that can tell which text of a reply is final while the rest is sampled.

    Without `settled`, clients that ask for a stream receive all text when the reply has ended.
    """

    def settled(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Return the text that no later token changes, of the first tokens of a reply.

        `text`, `reasoning` and `content` are beginnings of the values that `parse` returns for any reply that begins
        with `response_ids`. `content` is empty while `reasoning` can still grow. Calls of tools are not returned.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RendererSetup:
    """The model that a renderer is made for."""

    name: str
    """As the run names the model: a hub id or a folder."""
    tokenizer: Any
    """The Hugging Face tokenizer of the model. In the gateway's process, an object with its methods and attributes."""
    stop_ids: frozenset[int]
    """The tokens that the model's generation settings end a reply by."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template, such as ``{"enable_thinking": False}``."""


@dataclass(frozen=True, kw_only=True)
class RendererPlugin(Plugin[ParamsT]):
    """Offers a renderer. Chosen by ``rllm.renderer``.

    `load` returns a factory that takes the setup and the options. It raises ConfigError for a model that the renderer
    does not know, before any weights are loaded.
    """

    kind: ClassVar[str] = "renderer"

    load: Callable[[], Callable[[RendererSetup, Any], Renderer]]
