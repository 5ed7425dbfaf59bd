"""A renderer in a form that another process loads: a directory with its tokenizer and the names of what made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rllm_backend_kit.portable_tokenizer import PortableTokenizer, full_tokenizer, portable_form, return_free_memory
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.errors import ConfigError, PluginError, RolloutError
from rllm_core.notices import warn_once
from rllm_core.plugins import resolve
from rllm_core.rollout.options import RendererParams
from rllm_core.rollout.template_renderer import template_renderer

if TYPE_CHECKING:
    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.renderer import RendererPlugin

FILE, TOKENIZER = "renderer.json", "tokenizer"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Inputs that a renderer was made from."""

    setup: RendererSetup
    chosen: PluginChoice[RendererPlugin[Any]] | None
    """Selected renderer plugin. None means the core's template renderer."""


_ORIGINS: WeakKeyDictionary[Renderer, Origin] = WeakKeyDictionary()
_TOKENIZERS: WeakKeyDictionary[Renderer, Any] = WeakKeyDictionary()
_DIGESTS: WeakKeyDictionary[Renderer, str] = WeakKeyDictionary()


def remember_origin(renderer: Renderer, setup: RendererSetup, chosen: PluginChoice[RendererPlugin[Any]] | None) -> None:
    """Note what a renderer was made of, so that `save_renderer` can write it down."""
    _ORIGINS[renderer] = Origin(setup=setup, chosen=chosen)
    _TOKENIZERS[renderer] = setup.tokenizer
    _DIGESTS.pop(renderer, None)


def tokenizer_digest(renderer: Renderer) -> str | None:
    """Return a digest of the tokenizer's vocabulary, 32 hexadecimal digits. None if the tokenizer is unknown.

    You can train one model on a different model's tokens if both digests are equal.
    """
    if renderer not in _DIGESTS:
        tokenizer = _TOKENIZERS.get(renderer)
        if tokenizer is None:
            return None
        # Each step needs the digest, and a vocabulary of 150,000 takes 0.06 s of CPU.
        meanings = sorted((index, token) for token, index in tokenizer.get_vocab().items())
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
    renderer = _loaded(form, PortableTokenizer(directory / TOKENIZER, form["tokenizer"])) if form["tokenizer"] else None
    if renderer is None:
        renderer = _loaded(form, full_tokenizer(directory / TOKENIZER))
    if renderer is None:
        raise ConfigError(
            "renderer-not-portable",
            f"The tokenizer of {form['name']} gives other tokens once it is saved and loaded.",
            "Choose a model with a fast tokenizer (tokenizer.json).",
        )
    _DIGESTS[renderer] = form["tokenizer_digest"]
    return_free_memory()
    return renderer


def _loaded(form: dict[str, Any], tokenizer: Any) -> Renderer | None:
    """Make the renderer with a tokenizer. None if it gives other tokens than the renderer that was saved."""
    setup = RendererSetup(
        name=form["name"],
        tokenizer=tokenizer,
        stop_ids=frozenset(form["stop_ids"]),
        template_options=form["template_options"],
    )
    renderer = _made(setup, form)
    return renderer if _sample_digest(renderer) == form["sample"] else None


def _made(setup: RendererSetup, form: dict[str, Any]) -> Renderer:
    if form["plugin"] is None:
        return template_renderer(setup, RendererParams())
    registered = resolve("renderer", form["plugin"])
    try:
        params = registered.plugin.params.model_validate(form["params"])
    except ValueError as error:
        raise PluginError(
            "renderer-options-rejected",
            f"Renderer {form['plugin']} rejects its saved options: {error}.",
            "Save the renderer again with the installed version of its plugin.",
        ) from error
    made: Renderer = registered.load()(setup, params)
    return made


def _sample_digest(renderer: Renderer) -> str | None:
    """Digest of a short conversation's tokens and their text. None if the template raises an error for it."""
    try:
        tokens = renderer.prompt([{"role": "user", "content": "Is 1 + 1 = 2? Ünïcode — ok\n"}])
    except RolloutError:
        return None
    text = "\0".join((renderer.text(tokens), *renderer.token_texts(tokens)))
    return hashlib.blake2b(tokens.tobytes() + text.encode(), digest_size=16).hexdigest()
