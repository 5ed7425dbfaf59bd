"""Serve `example_session_state_mgmt` of NeMo-Gym without Ray and a head server. The argument is a file for the port."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn
from nemo_gym.server_utils import BaseServerConfig, ServerClient
from omegaconf import OmegaConf
from resources_servers.example_session_state_mgmt.app import (
    StatefulCounterResourcesServer,
    StatefulCounterResourcesServerConfig,
)

config = StatefulCounterResourcesServerConfig(
    name="counter", host="127.0.0.1", port=0, entrypoint="app.py", domain="agent"
)
client = ServerClient(
    head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create({})
)
app = StatefulCounterResourcesServer(config=config, server_client=client).setup_webserver()

with socket.create_server(("127.0.0.1", 0)) as listener:
    Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
