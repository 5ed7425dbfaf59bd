"""A renderer in a form that another process loads: a directory with its tokenizer and the names of its plugin.

A process that only renders has the library `tokenizers` and the chat template, without torch. The import of
`transformers` takes 200 MB and seconds of CPU, because it imports torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.errors import ConfigError, PluginError, RolloutError
from rllm_core.notices import warn_once
from rllm_core.plugins import resolve
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import template_renderer

if TYPE_CHECKING:
    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.renderer import RendererPlugin


import ctypes
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """The tag ``{% generation %}``, which marks the text of a model. The text itself stays as written."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it this way)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

    def _unchanged(self, caller: Callable[[], str]) -> str:
        return caller()


@lru_cache(maxsize=8)
def compile_template(source: str) -> Template:
    """Compile a chat template with the filters, functions and tags that `transformers` gives it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    # The filter of jinja2 escapes characters for HTML.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


TOKENIZER_FILE = "tokenizer.json"
METHODS = (
    "__call__",
    "_convert_token_to_id_with_added_voc",
    "_decode",
    "_encode_plus",
    "apply_chat_template",
    "convert_tokens_to_ids",
    "decode",
    "encode",
    "get_chat_template",
    "get_vocab",
    "set_truncation_and_padding",
    "special_tokens_map",
)
"""Attributes of a fast tokenizer that `PortableTokenizer` has too. Some classes replace one of them."""
SPACED = "a . b ? c ! d , e ' f n't g 'm h 's i 've j 're k"
"""Text that a tokenizer with clean-up of spaces does not decode to itself."""
OTHER_OPTIONS = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenizer_kwargs",
        "truncation",
    }
)
"""Options of `apply_chat_template` that are not variables of the template. They are left to `transformers`."""


def portable_form(tokenizer: Any) -> dict[str, Any] | None:
    """Return the settings that `PortableTokenizer` needs next to the saved ``tokenizer.json``, as JSON data.

    Returns:
        None if only `transformers` can compute this tokenizer's ids: a slow tokenizer, or a class with its own methods.
    """
    from transformers import PreTrainedTokenizerFast as Fast

    if not isinstance(tokenizer, Fast):
        return None
    if any(getattr(type(tokenizer), name, None) is not getattr(Fast, name, None) for name in METHODS):
        return None
    ids = tokenizer.encode(SPACED, add_special_tokens=False)
    if tokenizer.decode(ids) != tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False):
        return None
    return {
        "name_or_path": tokenizer.name_or_path,
        "chat_template": tokenizer.chat_template,
        "special_tokens": dict(tokenizer.special_tokens_map),
        "split_special_tokens": bool(tokenizer.split_special_tokens),
    }


class PortableTokenizer:
    """The part of a Hugging Face tokenizer that renderers use. It loads the rest with `transformers` on first use."""

    def __init__(self, directory: Path, form: Mapping[str, Any]) -> None:
        """Load a tokenizer.

        Args:
            directory: a directory that `save_pretrained` wrote.
            form: the settings from `portable_form`.
        """
        from tokenizers import Tokenizer

        self._directory = directory
        self._backend = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = form["split_special_tokens"]
        self._special_tokens: Mapping[str, str] = form["special_tokens"]
        self._loaded: Any = None
        self.name_or_path: str = form["name_or_path"]
        self.chat_template: str | dict[str, str] | None = form["chat_template"]
        self.unk_token_id = self._special_id("unk_token")
        self.bos_token_id = self._special_id("bos_token")
        self.eos_token_id = self._special_id("eos_token")

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        documents: Any = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **options: Any,
    ) -> Any:
        """Render a conversation as text. See `transformers` for the arguments."""
        template = self.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use" if tools is not None and "tool_use" in template else "default")
        if tokenize or options.keys() & OTHER_OPTIONS or template is None:
            return self._full.apply_chat_template(
                conversation,
                tools,
                documents,
                add_generation_prompt=add_generation_prompt,
                tokenize=tokenize,
                **options,
            )
        return compile_template(template).render(
            messages=conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**self._special_tokens, **options},
        )

    def encode(self, text: str, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the ids of a text."""
        if options:
            return list(self._full.encode(text, add_special_tokens=add_special_tokens, **options))
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of a sequence of ids."""
        if options or not isinstance(token_ids, list):
            return self._full.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or the ids of a list of tokens. Unknown tokens get `unk_token_id`."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The tokens that were added to the vocabulary, by id. They have fields such as `content` and `special`."""
        return dict(self._backend.get_added_tokens_decoder())

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token, added tokens included."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def __call__(self, text: Any, *, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return ids and, for ``return_offsets_mapping``, each token's characters. `transformers` does the rest."""
        if not isinstance(text, str) or options != {"return_offsets_mapping": True}:
            return self._full(text, add_special_tokens=add_special_tokens, **options)
        encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "offset_mapping": encoded.offsets}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._full, name)

    @property
    def _full(self) -> Any:
        if self._loaded is None:
            self._loaded = full_tokenizer(self._directory)
        return self._loaded

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def full_tokenizer(directory: Path) -> Any:
    """Load a saved tokenizer with `transformers`, which imports torch."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def return_free_memory() -> None:
    """Give memory that was read and freed back to the system. A file with 150,000 tokens leaves 40 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in the C library of GNU
    if trim is not None:
        trim(0)


FILE, TOKENIZER = "renderer.json", "tokenizer"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Inputs that a renderer was made from."""

    setup: RendererSetup
    chosen: PluginChoice[RendererPlugin[Any]] | None
    """Selected renderer plugin. None means the core's template renderer."""


_ORIGINS: WeakKeyDictionary[Renderer, Origin] = WeakKeyDictionary()
_DIGESTS: WeakKeyDictionary[Renderer, str] = WeakKeyDictionary()


def remember_origin(renderer: Renderer, setup: RendererSetup, chosen: PluginChoice[RendererPlugin[Any]] | None) -> None:
    """Note what a renderer was made of, so that `save_renderer` can write it down."""
    _ORIGINS[renderer] = Origin(setup=setup, chosen=chosen)
    _DIGESTS.pop(renderer, None)


def tokenizer_digest(renderer: Renderer) -> str | None:
    """Return a digest of the tokenizer's vocabulary, 32 hexadecimal digits. None if the tokenizer is unknown.

    You can train one model on a different model's tokens if both digests are equal.
    """
    if renderer not in _DIGESTS:
        origin = _ORIGINS.get(renderer)
        if origin is None:
            return None
        # Each step needs the digest, and a vocabulary of 150,000 takes 0.06 s of CPU.
        meanings = sorted((index, token) for token, index in origin.setup.tokenizer.get_vocab().items())
        _DIGESTS[renderer] = hashlib.blake2b(json.dumps(meanings).encode(), digest_size=16).hexdigest()
    return _DIGESTS[renderer]


def save_renderer(renderer: Renderer, directory: Path) -> None:
    """Write a renderer into an existing directory; `load_renderer` makes an equal one of it in any process.

    Raises:
        ConfigError: the renderer was not made by `make_renderer`.
    """
    origin = _ORIGINS.get(renderer)
    if origin is None:
        raise ConfigError(
            "renderer-not-portable",
            f"The renderer {type(renderer).__name__} cannot be saved for a different process: "
            "it was not made by `make_renderer`.",
            "Let the backend make it with `rllm_backend_kit.renderers.make_renderer`.",
        )
    setup, chosen = origin.setup, origin.chosen
    setup.tokenizer.save_pretrained(directory / TOKENIZER)
    form = {
        "plugin": None if chosen is None else chosen.qualified_name,
        "params": None if chosen is None else chosen.params.model_dump(mode="json"),
        "name": setup.name,
        "stop_ids": sorted(setup.stop_ids),
        "template_options": dict(setup.template_options),
        "sample": _sample_digest(renderer),
        "tokenizer": portable_form(setup.tokenizer),
        "tokenizer_digest": tokenizer_digest(renderer),
    }
    if form["tokenizer"] is None:
        warn_once(
            f"the tokenizer {type(setup.tokenizer).__name__} needs transformers, so each process that renders "
            "takes about 300 MB more memory. A fast tokenizer (tokenizer.json) does not need it."
        )
    (directory / FILE).write_text(json.dumps(form), encoding="utf-8")


def load_renderer(directory: Path) -> Renderer:
    """The renderer that `save_renderer` wrote.

    Raises:
        PluginError: its plugin is not installed here, or the program that wrote it registered it itself.
        ConfigError: the tokenizer gives other tokens here than it gave there.
    """
    form = json.loads((directory / FILE).read_text(encoding="utf-8"))
    renderer = None
    if form["tokenizer"]:
        renderer = _load_equal(form, PortableTokenizer(directory / TOKENIZER, form["tokenizer"]))
    if renderer is None:
        renderer = _load_equal(form, full_tokenizer(directory / TOKENIZER))
    if renderer is None:
        raise ConfigError(
            "renderer-not-portable",
            f"The tokenizer of {form['name']} gives other tokens once it is saved and loaded.",
            "Choose a model with a fast tokenizer (tokenizer.json).",
        )
    _DIGESTS[renderer] = form["tokenizer_digest"]
    return_free_memory()
    return renderer


def _load_equal(form: dict[str, Any], tokenizer: Any) -> Renderer | None:
    """Make the renderer with a tokenizer. None if it gives other tokens than the renderer that was saved."""
    setup = RendererSetup(
        name=form["name"],
        tokenizer=tokenizer,
        stop_ids=frozenset(form["stop_ids"]),
        template_options=form["template_options"],
    )
    renderer = _make(setup, form)
    return renderer if _sample_digest(renderer) == form["sample"] else None


def _make(setup: RendererSetup, form: dict[str, Any]) -> Renderer:
    if form["plugin"] is None:
        return template_renderer(setup, TemplateParams())
    registered = resolve("renderer", form["plugin"])
    try:
        params = registered.plugin.params.model_validate(form["params"])
    except ValueError as error:
        raise PluginError(
            "renderer-options-rejected",
            f"Renderer {form['plugin']} rejects its saved options: {error}.",
            "Save the renderer again with the installed version of its plugin.",
        ) from error
    renderer: Renderer = registered.load()(setup, params)
    return renderer


def _sample_digest(renderer: Renderer) -> str | None:
    """Digest of a short conversation's tokens and their text. None if the template raises an error for it."""
    try:
        tokens = renderer.prompt([{"role": "user", "content": "Is 1 + 1 = 2? Ünïcode — ok\n"}])
    except RolloutError:
        return None
    text = "\0".join((renderer.text(tokens), *renderer.token_texts(tokens)))
    return hashlib.blake2b(tokens.tobytes() + text.encode(), digest_size=16).hexdigest()
