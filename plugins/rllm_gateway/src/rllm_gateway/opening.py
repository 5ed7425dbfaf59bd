"""Start the gateway of a run, or attach to a gateway that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rllm_core.contracts.workflow import OpenedRun
from rllm_gateway.checks import check_store
from rllm_gateway.process import GatewayAddress, gateway_process, running_gateway
from rllm_gateway.rollout_session import OpenedGateway
from rllm_gateway.store_paths import store_path


@asynccontextmanager
async def open_gateway(run: OpenedRun, directory: Path) -> AsyncIterator[OpenedGateway]:
    """Open the gateway of a run until the context ends.

    Args:
        run: the run, whose ``rllm.sdk`` configures the gateway.
        directory: directory for the gateway's temporary files.
    """
    sdk, trainer = run.config.rllm.sdk, run.config.rllm.trainer
    store = store_path(sdk.store.path, run.directory)
    if sdk.proxy.mode != "external" and sdk.store.path is None and not run.replaces:
        # Check the store before anything is sampled. `check_sdk` has already checked a store from the configuration.
        await asyncio.to_thread(check_store, store, "rllm.sdk.store.path")
    address = GatewayAddress(store=str(store), host=sdk.proxy.host, port=sdk.proxy.port)
    renderer = run.engine.renderer
    external = sdk.proxy.mode == "external"
    gateway = running_gateway(renderer, sdk, directory) if external else gateway_process(renderer, address, directory)
    async with gateway as (link, _):
        yield OpenedGateway(
            link=link,
            run=f"{trainer.project_name}/{trainer.experiment_name}",
            processing=sdk.processing,
            engine_stops=run.stop_texts,
        )
