"""Base class of plugin options. It is apart from the plugin specs, so that listing plugins does not import pydantic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Base class for the options of a plugin. Unknown options are errors. Options never change after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class NoParams(Params):
    """The options of plugins that have none."""
