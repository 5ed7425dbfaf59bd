"""The servers of environments: their addresses, and the form of their actions and observations."""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import httpx
from jsonschema import Draft202012Validator

from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.module_path import find_module_path
from rllm_envs.openenv.options import OpenEnvParams
from rllm_serving.line_process import DiedError, LineProcess, NotReadyError
from rllm_serving.listening import is_loopback

MODULE = "rllm_envs.openenv.local_server"
SECONDS_TO_ANSWER = 20.0


class LocalServer:
    """A process of this machine that serves an application. It starts when its address is needed."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._lock = Lock()
        self._process: LineProcess | None = None
        self._url = ""

    def find_url(self) -> str:
        """Return its address. If the process has ended, start a new one.

        Raises:
            ConfigError: the application cannot be imported, or does not start.
        """
        with self._lock:
            if self._process is None or not self._listens():
                try:
                    # Sets of strings have the same order after a resume.
                    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": find_module_path()}
                    process = LineProcess.start(MODULE, [self._application], stderr=None, environment=environment)
                    self._url = process.ask("url").strip()
                except (DiedError, NotReadyError) as error:
                    raise ConfigError(
                        "unknown-choice",
                        f"rllm.env.env_args.server: {self._application!r} does not start: {str(error).strip()}.",
                        "Install the module, or put its directory on Python's path: PYTHONPATH=. rllm train …",
                    ) from error
                atexit.register(process.end)
                self._process = process
            return self._url

    def _listens(self) -> bool:
        """True if the server accepts connections. Its process ends a moment after its last connection."""
        address = urlsplit(self._url)
        try:
            socket.create_connection((address.hostname, address.port), timeout=SECONDS_TO_ANSWER).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers."""

    url: str
    token: str | None
    form: ActionForm

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return _make_headers(self.token)

    def count_tasks(self, split: str) -> int:
        """Return the number of tasks in a split of the server's task API.

        Raises:
            ConfigError: the server has no such split, or no task API.
        """
        (name,) = _ask(self.url, self.token, "GET", "/list_environments")
        answer = _ask(self.url, self.token, "POST", f"/{name}/num_tasks", {"split": split})
        return int(answer["num_tasks"])


def find_server(params: OpenEnvParams) -> Server:
    """Return the server of the options. Start it if it is an application, or was one that has ended.

    Raises:
        ConfigError: nothing answers, the application does not start, the token is missing, or the actions have no such
            field.
    """
    token = None
    if params.token_variable:
        token = os.environ.get(params.token_variable)
        if not token:
            raise ConfigError(
                "missing-api-key",
                f"Environment {params.server!r} needs the environment variable {params.token_variable}, which is not "
                "set.",
                f"Set it with `export {params.token_variable}=TOKEN`, or change rllm.env.env_args.token_variable.",
            )
    is_address = "://" in params.server
    url = params.server.rstrip("/") if is_address else _local_server(os.getpid(), params.server).find_url()
    form = read_form(_read_schema(url, token), params.action)
    properties = form.schema["properties"]
    if params.action is not None and params.action not in properties:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.action: the actions of {params.server!r} have no field {params.action!r}.",
            did_you_mean(params.action, list(properties)) or f"Their fields: {', '.join(properties)}.",
        )
    return Server(url=url, token=token, form=form)


@lru_cache
def _local_server(owner: int, application: str) -> LocalServer:
    """Return the server of an application in the process `owner`. A fork starts without servers."""
    return LocalServer(application)


@lru_cache
def _read_schema(url: str, token: str | None) -> Mapping[str, Any]:
    """Return the JSON schema of a server's actions."""
    schema: Mapping[str, Any] = _ask(url, token, "GET", "/schema")["action"]
    return schema


def _make_headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _ask(url: str, token: str | None, method: str, path: str, body: Any = None) -> Any:
    """Send a request to a server, and return its answer."""
    try:
        # A proxy of the user's network cannot reach this machine.
        has_proxy = not is_loopback(urlsplit(url).hostname or "")
        with httpx.Client(headers=_make_headers(token), timeout=SECONDS_TO_ANSWER, trust_env=has_proxy) as client:
            return client.request(method, url + path, json=body).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(
            "service-unreachable",
            f"{method} {url}{path}, the server of an OpenEnv environment, fails: {error or type(error).__name__}.",
            "Start the server, or correct rllm.env.name=openenv:http://HOST:PORT.",
        ) from error


METADATA = "metadata"
"""A field that all actions and observations of OpenEnv have."""
_NUMBERS = ("integer", "number")


@dataclass(frozen=True, kw_only=True)
class ActionForm:
    """The form of the server's actions."""

    schema: Mapping[str, Any]
    """JSON schema of an action, without the field `METADATA`."""
    field: str | None
    """Field that gets the response. None: the response contains a JSON object with all fields."""

    @property
    def request(self) -> str:
        """The sentence that asks the model for an action."""
        if self.field is None:
            return f"Reply with a JSON object that fits this schema: {json.dumps(self.schema, ensure_ascii=False)}"
        described = self.schema["properties"][self.field].get("description")
        kind = "a number" if self._is_number else "text"
        return f"Reply with {kind} for {self.field!r}{f': {described}' if described else ''}."

    def read(self, response: str) -> dict[str, Any] | None:
        """Return the action of a response, or None if it contains no valid action."""
        action = _read_object(response) if self.field is None else {self.field: self._read_field(response)}
        valid = action is not None and Draft202012Validator(self.schema).is_valid(action)
        return action if valid else None

    def _read_field(self, response: str) -> Any:
        if not self._is_number:
            return response.strip()
        numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
        if not numbers:
            return None
        return float(numbers[-1]) if "." in numbers[-1] else int(numbers[-1])

    @property
    def _is_number(self) -> bool:
        assert self.field is not None
        return self.schema["properties"][self.field].get("type") in _NUMBERS


def read_form(schema: Mapping[str, Any], field: str | None) -> ActionForm:
    """Return the form of an action schema. `field` is the user's choice of the field for the response."""
    properties = {name: each for name, each in schema.get("properties", {}).items() if name != METADATA}
    if field is None and len(properties) == 1:
        (name,) = properties
        field = name if properties[name].get("type") in ("string", *_NUMBERS) else None
    return ActionForm(schema={**schema, "properties": properties}, field=field)


def write_observation(observation: Mapping[str, Any], field: str | None) -> str:
    """Return the text of an observation: the field, or all fields as JSON. A single text field needs no JSON."""
    fields = {name: value for name, value in observation.items() if name != METADATA}
    value = fields[field] if field else next(iter(fields.values())) if len(fields) == 1 else fields
    return value if isinstance(value, str) else json.dumps(fields if field is None else value, ensure_ascii=False)


def _read_object(response: str) -> dict[str, Any] | None:
    """Return the last JSON object in a response."""
    decoder, found, start = json.JSONDecoder(), None, response.find("{")
    while start >= 0:
        try:
            found, start = decoder.raw_decode(response, start)
        except json.JSONDecodeError:
            start += 1
        start = response.find("{", start)
    return found
