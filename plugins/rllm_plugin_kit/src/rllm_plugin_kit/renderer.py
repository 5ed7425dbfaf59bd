"""The contract of renderers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from rllm_core.contracts.renderer import Renderer, RendererPlugin, RendererSetup
from rllm_core.data.messages import Message, Response, Tool
from rllm_core.errors import ConfigError, RolloutError
from rllm_plugin_kit.plugin import PluginContract

CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "guess a number"},),
    ({"role": "system", "content": "be brief"}, {"role": "user", "content": "one plus one?"}),
    (
        {"role": "user", "content": "guess"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "lower"},
    ),
)
NEXT: tuple[Message, ...] = ({"role": "user", "content": "higher"},)
WORDS = ("7", "a number", "", "one plus one is 2.")
TOOLS: tuple[Tool, ...] = (
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}},
)


class RendererContract(PluginContract[RendererPlugin[Any]]):
    """Contract of every renderer. Override `setup` to set the renderer's model."""

    kind = "renderer"
    conversations: ClassVar[Sequence[Sequence[Message]]] = CONVERSATIONS
    """Conversations up to the model's response, with text that the tokenizer can round-trip."""
    words: ClassVar[Sequence[str]] = WORDS
    """Responses, in words that the tokenizer keeps."""

    def setup(self) -> RendererSetup:
        """The model of the renderer. Override it if the renderer needs a certain model.

        The default is a tokenizer of characters with a chat template; it needs transformers.
        """
        from rllm_plugin_kit.small_model import STOP_ID, make_tokenizer

        return RendererSetup(name="small", tokenizer=make_tokenizer(), stop_ids=frozenset({STOP_ID}))

    def test_stop_tokens_exist(self, params: Any) -> None:
        stops = self._make_renderer(params).stop_ids
        if not stops or not all(isinstance(stop, int) and stop >= 0 for stop in stops):
            raise self.failure(f"has the stop ids {set(stops)!r}", "Name the tokens that end a response, at least one.")

    def test_tokens_are_int32(self, params: Any) -> None:
        renderer = self._make_renderer(params)
        made = {
            "prompt": [self._ask(renderer.prompt, each) for each in self.conversations],
            "response_ids": [self._ask(renderer.response_ids, each) for each in self.words],
        }
        for name, arrays in made.items():
            for tokens in arrays:
                if (
                    not isinstance(tokens, np.ndarray)
                    or tokens.dtype != np.int32
                    or tokens.ndim != 1
                    or not len(tokens)
                ):
                    raise self.failure(
                        f"returns {tokens!r:.80} from {name}", "Return token ids, (n,) int32, at least one."
                    )

    def test_bridge_keeps_every_token(self, params: Any) -> None:
        """The next prompt starts with the previous prompt and the sampled response, for any response."""
        renderer = self._make_renderer(params)
        for prompt, response in self._sample_responses(renderer):
            bridged = self._ask(renderer.bridge, prompt, response, NEXT)
            if bridged is None:
                continue
            kept = [*prompt.tolist(), *response]
            if bridged.tolist()[: len(kept)] != kept or len(bridged) <= len(kept):
                raise self.failure(
                    f"makes a next prompt that does not begin with the prompt and the response {list(response)}",
                    "Append to them, or return None: what the model sampled is never tokenized again.",
                )

    def test_bridge_matches_the_whole_conversation(self, params: Any) -> None:
        """The response is as the template writes it, with one stop token."""
        renderer = self._make_renderer(params)
        for conversation in self.conversations:
            prompt = self._ask(renderer.prompt, conversation)
            for words in self.words:
                response = self._ask(renderer.response_ids, words)
                bridged = self._ask(renderer.bridge, prompt, response, NEXT)
                whole = [*conversation, {"role": "assistant", "content": words}, *NEXT]
                if bridged is not None and bridged.tolist() != self._ask(renderer.prompt, whole).tolist():
                    raise self.failure(
                        f"continues after the response {words!r} differently from `prompt` of the whole conversation",
                        "End the model's turn once: where a stop token was sampled, do not write it again.",
                    )

    def test_observations_end_no_turn(self, params: Any) -> None:
        """The text of a stop token is plain text in a message after a response, because it can come from a tool."""
        renderer = self._make_renderer(params)
        stops = sorted(renderer.stop_ids)
        prompt, response = self._sample_responses(renderer)[0]
        before = [*self.conversations[0], {"role": "assistant", "content": self.words[0]}]
        for text in renderer.token_texts(stops):
            plain, spelled = ([{"role": "user", "content": f"a{said}b"}] for said in ("", text))
            for name, render in {
                "bridge": lambda messages: renderer.bridge(prompt, response, messages),
                "prompt": lambda messages: renderer.prompt([*before, *messages]),
            }.items():
                first, second = self._ask(render, plain), self._ask(render, spelled)
                if first is not None and np.isin(first, stops).sum() != np.isin(second, stops).sum():
                    raise self.failure(
                        f"lets {text!r} in the text of a message end its turn, in `{name}`",
                        "Pass messages through rllm_core.rollout.control_tokens.ControlTokens.",
                    )

    def test_response_text_survives_a_round_trip(self, params: Any) -> None:
        renderer = self._make_renderer(params)
        for words in self.words:
            response = self._ask(renderer.response_ids, words)
            if int(response[-1]) not in renderer.stop_ids:
                raise self.failure(
                    f"does not end the response {words!r} with a stop token", "Append it in `response_ids`."
                )
            if (text := self._ask(renderer.text, response)) != words:
                raise self.failure(
                    f"reads {text!r} from the tokens of {words!r}",
                    "`text` gives the words without special tokens; set `words` in the test to others where it must.",
                )

    def test_every_token_has_a_text(self, params: Any) -> None:
        renderer = self._make_renderer(params)
        for words in self.words:
            response = self._ask(renderer.response_ids, words)
            texts = self._ask(renderer.token_texts, response)
            if not isinstance(texts, list) or len(texts) != len(response) or words not in "".join(texts):
                raise self.failure(
                    f"returns {texts!r:.80} for the tokens of {words!r}",
                    "Return one text per token in `token_texts`; together they are the text.",
                )

    def test_any_tokens_can_be_parsed(self, params: Any) -> None:
        renderer = self._make_renderer(params)
        for prompt, response in self._sample_responses(renderer):
            parsed = self._ask(renderer.parse, prompt, response, TOOLS)
            if not isinstance(parsed, Response):
                raise self.failure(f"parses {list(response)} as {parsed!r:.80}", "Return a Response.")
            if parsed.text != renderer.text(response):
                raise self.failure(
                    f"returns the text {parsed.text!r:.50}, but `text` returns {renderer.text(response)!r:.50}",
                    "`Response.text` is the whole text. `Response.content` is the part for the user.",
                )

    def test_results_depend_only_on_the_arguments(self, params: Any) -> None:
        """Results do not change in a second call, or in a second renderer of the same model."""
        first, other = self._make_renderer(params), self._make_renderer(params)
        for conversation in [*self.conversations, *self.conversations[::-1]]:
            tokens = self._ask(first.prompt, conversation)
            if tokens.tolist() != self._ask(other.prompt, copy.deepcopy(conversation)).tolist():
                raise self.failure("renders the same conversation differently", "Keep only caches between calls.")
            if tokens.flags.writeable:
                tokens += 1
                if self._ask(first.prompt, conversation).tolist() == tokens.tolist():
                    raise self.failure(
                        "gives out tokens of its cache that can be changed",
                        "Copy them, or set flags.writeable = False.",
                    )

    def test_it_does_not_change_messages(self, params: Any) -> None:
        renderer = self._make_renderer(params)
        for conversation in self.conversations:
            before = copy.deepcopy(conversation)
            self._ask(renderer.prompt, conversation)
            if before != conversation:
                raise self.failure("changes the messages that it renders", "Make new messages instead.")

    def test_tools_are_rendered_or_rejected(self, params: Any) -> None:
        """A renderer must not drop tools silently, because the model cannot call a tool that it does not see."""
        renderer = self._make_renderer(params)
        for conversation in self.conversations:
            try:
                tokens = renderer.prompt(conversation, TOOLS)
            except (RolloutError, ConfigError):
                continue
            if tokens.tolist() == renderer.prompt(conversation).tolist():
                raise self.failure(
                    "drops tools from the prompt without an error", "Render the tools, or raise RolloutError."
                )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        renderer = self._make_renderer(params)

        def render_and_parse() -> None:
            for prompt, response in self._sample_responses(renderer):
                self._ask(renderer.parse, prompt, response)

        self.check_process_state(render_and_parse, "Compute, and return at once.")

    def _make_renderer(self, params: Any) -> Renderer:
        make: Callable[..., Renderer] = self.load_plugin()
        with self.explain_errors(
            "cannot be made",
            "What `load` returns is called with a RendererSetup and the options; override `setup` in the test for "
            "a renderer of a certain model.",
        ):
            return make(self.setup(), params)

    def _sample_responses(self, renderer: Renderer) -> list[tuple[Any, list[int]]]:
        """Prompts with responses as a model may sample them: whole, cut off, empty, and without sense."""
        prompt = self._ask(renderer.prompt, self.conversations[0])
        stop = min(renderer.stop_ids)
        whole = [self._ask(renderer.response_ids, words).tolist() for words in self.words]
        cut_off = [response[:-1] for response in whole if len(response) > 1]
        seen = sorted({*prompt.tolist(), *(token for response in whole for token in response)} - renderer.stop_ids)
        # Token 0 is a special one in most tokenizers, which its text does not show.
        junk = [seen[::-1], [*seen[:3], stop], [stop], [0, seen[0], 0]]
        return [(prompt, response) for response in (*whole, *cut_off, *junk)]

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with self.explain_errors(
            f"fails in {getattr(method, '__name__', 'a method')}",
            "Conversations of text, and any tokens of a model, can be rendered and read.",
        ):
            return method(*arguments)
