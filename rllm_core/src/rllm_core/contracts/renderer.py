"""Renderers: they convert messages to tokens and tokens to responses, for one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """The conversion between messages and tokens. Results depend only on the arguments. Sampled tokens are never
    tokenized again."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a response."""
        ...

    @property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """The tokens before and after the model's reasoning, which is removed from later prompts.

        None if the model has no single token for each, or if `bridge` itself decides which reasoning to keep.
        """
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> NDArray[np.int32]:
        """Return the tokens, (n,) int32, of a conversation that starts with `messages`, up to the start of the model's
        response.

        Raises:
            RolloutError: the model's template does not support such messages or does not support tools.
        """
        ...

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> NDArray[np.int32] | None:
        """Return the tokens, (n,) int32, of the next prompt: `prompt_ids`, `response_ids`, and then `messages`.

        The two inputs are unchanged. The end of the model's turn follows them. A sampled stop token is not repeated. If
        the response did not close its reasoning, the closing tokens are added to the prompt, because they were not
        sampled. Return None if the model's template rewrites earlier messages, so that the conversation must be
        rendered again.
        """
        ...

    def response_ids(self, text: str) -> NDArray[np.int32]:
        """Return the tokens, (n,) int32, of a response that is only known as text, with the stop token that ends it.

        The sampled tokens of the same text can differ. Use the sampled tokens if you have them.
        """
        ...

    def text(self, token_ids: TokenIds) -> str:
        """Return the text of a response, without special tokens."""
        ...

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """Return the text of each token as part of a longer text, including special tokens, for display. Bytes that are
        not valid UTF-8 by themselves become U+FFFD."""
        ...

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Parse the tokens sampled after `prompt_ids`. Never raises: `Response` reports unreadable parts.

        `tools` are the prompt's tools. Some models write arguments without quotes, and the schema shows which are
        strings. If `tools` is empty, the response has no tool calls and `Response.content` contains the whole text of
        the answer.
        """
        ...


@runtime_checkable
class StreamingRenderer(Renderer, Protocol):
    """A renderer that can report which text of a response is final during sampling.

    Without `parse_partial`, streaming clients receive the whole text when the response has ended.
    """

    def parse_partial(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Return the text of a partial response that no later token can change.

        `text`, `reasoning` and `content` are prefixes of the values that `parse` returns for any response that begins
        with `response_ids`. `content` is empty while `reasoning` can still grow. Tool calls are not returned.
        """
        ...


@runtime_checkable
class PlainTextRenderer(Renderer, Protocol):
    """A renderer that can encode a prompt of plain text, without the chat template.

    Without `encode`, the gateway answers ``/v1/completions`` with an error, unless the prompt is a list of token ids.
    """

    def encode(self, text: str, *, add_special_tokens: bool = True) -> NDArray[np.int32]:
        """Return the tokens, (n,) int32, of a text.

        If `add_special_tokens` is true, they include the tokens that the tokenizer adds to each text, such as a token
        that starts it. If the text already begins with this token, it is not added again.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RendererSetup:
    """The model that a renderer is made for."""

    name: str
    """The model's name in the run's config: a Hub id or a directory."""
    tokenizer: Any
    """The Hugging Face tokenizer of the model. In the gateway's process it is an object with the same methods and
    attributes."""
    stop_ids: frozenset[int]
    """The tokens that end a response according to the model's generation settings."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Options for the chat template, such as ``{"enable_thinking": False}``."""


@dataclass(frozen=True, kw_only=True)
class RendererPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a renderer. Users choose it with ``rllm.renderer``.

    `load` returns a factory that takes the setup and the options. The factory raises ConfigError if the renderer does
    not support the model, before any weights are loaded.

    For example::

        from rllm_core.contracts import RendererPlugin
        from rllm_core.plugins import hookimpl

        def load_answer_only():
            from dataclasses import replace

            from rllm_core.rollout.template_renderer import TemplateRenderer

            class AnswerOnly(TemplateRenderer):
                def parse(self, prompt_ids, response_ids, tools=()):
                    response = super().parse(prompt_ids, response_ids, tools)
                    return replace(response, content=response.content.rpartition("Answer:")[2].strip())

            return lambda setup, params: AnswerOnly(setup.tokenizer, setup.stop_ids, setup.template_options)

        @hookimpl
        def rllm_renderers():
            yield RendererPlugin(
                name="answer_only",
                summary="The model's template; a response's content is what follows `Answer:`.",
                load=load_answer_only,
            )
    """

    kind: ClassVar[str] = "renderer"

    load: Callable[[], Callable[[RendererSetup, Any], Renderer]]
    alternatives: Callable[[], Callable[[RendererSetup], Iterable[tuple[str, Renderer]]]] | None = None
    """Loads a function that yields other renderers with the same prompts for a model, each with its name in
    ``rllm.renderer``. Errors about a part of a message that the run's renderer drops name a renderer that shows it."""
