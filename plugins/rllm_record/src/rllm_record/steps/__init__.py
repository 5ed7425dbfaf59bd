"""The record of a run, Parquet files per step: what was played, what became of it, and what each token did.

Nothing of a running process is needed to read it, and it can be read while the run goes on:

    from rllm_record.steps import StepFiles

    files = StepFiles(run_directory / "record")
    for step in files.steps():
        outcomes = files.outcomes(step)
        texts = files.vocabulary(step)
        traces = files.trace_table(step).to_pylist()
"""

from rllm_record.steps.errors import RecordError
from rllm_record.steps.files import StepFiles
from rllm_record.steps.rows import PlayedEpisode, PlayedTrajectory, RecordedOutcome, RecordedUpdate, Sampler
from rllm_record.steps.version import require_known_version

__all__ = [
    "PlayedEpisode",
    "PlayedTrajectory",
    "RecordError",
    "RecordedOutcome",
    "RecordedUpdate",
    "Sampler",
    "StepFiles",
    "require_known_version",
]
