"""Options of the estimator `example`, in a module that is cheap to import: it is whenever plugins are listed."""

from pydantic import Field
from rllm_core.contracts import Params


class ExampleEstimatorParams(Params):
    strength: float = Field(default=1.0, gt=0, description="Multiplies every advantage.")
