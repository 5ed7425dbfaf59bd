"""`rllm tinker`: the local Tinker server on the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

PORT = 8017


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def tinker() -> None:
    """Serve the Tinker API on this machine.

    \b
      rllm tinker serve --model tiny
    """


@tinker.command()
@click.option("--model", required=True, metavar="DIRECTORY|ID", help="`tiny`, a Hugging Face directory, or a hub id.")
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of the model for clients. May be repeated. Default: the value of --model, and the directory's name.",
)
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on. 0 means any free port.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. Other addresses need an API key."
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="TINKER_API_KEY",
    help="Key that clients must send. May be repeated: each key owns its models. Without it, the server accepts any "
    "key. Other users of this machine can see a key on the command line, so set TINKER_API_KEY instead, to one key or "
    "several with spaces between them.",
)
@click.option(
    "--checkpoints",
    default=Path("tinker-checkpoints"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for clients' checkpoints. The server reads it again after a restart.",
)
@click.option(
    "--max-context", type=click.IntRange(2), help="Maximum tokens of a prompt and its response. Default: the model's."
)
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="CPU threads of torch for training, and the same number for sampling.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, …")
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="Type of the base model's weights and of activations. float16 is not available, because gradients leave its "
    "range. Adapters, their gradients and AdamW's moments are always float32.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights of `tiny`, as trainer.seed in a run.")
@click.option("--max-models", default=16, show_default=True, type=click.IntRange(1), help="Maximum LoRA models.")
@click.option(
    "--max-models-per-key", type=click.IntRange(1), help="Maximum LoRA models of one key. Default: --max-models."
)
@click.option(
    "--max-snapshots",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum sampler weights in memory.",
)
@click.option(
    "--max-merged",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum sets of weights ready for sampling, and one more if several keys sample. Each set is a copy of the "
    "adapted layers.",
)
@click.option(
    "--kv-cache-gib",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="GiB of cached keys and values for each set of weights in use for sampling.",
)
@click.option(
    "--stand-in-losses",
    is_flag=True,
    help="Accept the loss stable_reinforce, the default of the Tinker cookbook. Its formula is not public, so the "
    "server computes another one: truncated importance sampling, plus kl_coeff times the KL divergence.",
)
@click.option("--announce", type=click.Path(dir_okay=False, path_type=Path), help="File to write the URL to, as JSON.")
@click.option(
    "--end-with-stdin", is_flag=True, help="Stop when standard input closes, for example when the parent process dies."
)
def serve(
    port: int,
    host: str,
    api_keys: tuple[str, ...],
    max_models: int,
    max_models_per_key: int | None,
    max_snapshots: int,
    stand_in_losses: bool,
    announce: Path | None,
    end_with_stdin: bool,
    **model: Any,
) -> int:
    """Serve a model to Tinker programs. They train LoRA models on it and sample from them, on this machine.

    \b
    Serve the two-layer model that rllm makes in code, for first tests:
      rllm tinker serve --model tiny
    Serve your own model, under the name that a program requests:
      rllm tinker serve --model ./Qwen3-0.6B --name Qwen/Qwen3-8B
    Then, in another terminal, run any Tinker program unchanged:
      TINKER_BASE_URL=http://127.0.0.1:8017 TINKER_API_KEY=tml-local python train.py
    Serve other machines too, with a key:
      TINKER_API_KEY=tml-$(openssl rand -hex 16) rllm tinker serve --model tiny --host 0.0.0.0
    Serve two people, who do not see each other's models and checkpoints:
      TINKER_API_KEY="tml-KEY-OF-ANN tml-KEY-OF-BEN" rllm tinker serve --model tiny --host 0.0.0.0

    Ctrl-C stops the server. Checkpoints stay. Models without a checkpoint are lost.
    """
    from rllm_core.errors import ConfigError

    try:
        from rllm_tinker_server.limits import TinkerLimits
        from rllm_tinker_server.serve import (
            ModelOptions,
            TinkerServeOptions,
            is_worker_busy,
            listen_for,
            open_service,
            serve as run,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "missing-package",
            f"The local server needs {error.name}, which is not installed.",
            "Run: pip install rllm-tinker-server",
        ) from error
    where = TinkerServeOptions(host=host, port=port, keys=api_keys, announce=announce, end_with_stdin=end_with_stdin)
    limits = TinkerLimits(
        max_models=max_models,
        max_models_per_key=max_models_per_key,
        max_snapshots=max_snapshots,
        stand_in_losses=stand_in_losses,
    )
    what = ModelOptions(**model, limits=limits)

    def ready(url: str) -> None:
        key = "YOUR_KEY" if api_keys else "tml-local"
        click.echo(f"serving {what.model} at {url}. Clients call it {' or '.join(service.names)}")
        click.echo(f"checkpoints: {what.checkpoints.resolve()}")
        if api_keys:
            click.echo(f"keys: {len(api_keys)}, from --api-key or TINKER_API_KEY. Clients must send a key of this list")
        click.echo(f"run a Tinker program with: TINKER_BASE_URL={url} TINKER_API_KEY={key} python PROGRAM.py")
        sys.stdout.flush()

    # Bind the port before the model is loaded, so that errors are reported at once.
    with listen_for(where) as listening, open_service(what) as service:
        code = run(service, where, listening, ready)
    if is_worker_busy():
        # A long step would keep the process alive, but no client waits for its result any more.
        sys.stdout.flush()
        os._exit(code)
    return code
