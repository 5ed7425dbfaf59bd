"""The record of a run, in Parquet files per step: its rollouts, their outcomes, and each token's part in the update.

You can read it after the run, and while the run continues:

    from rllm_record.steps import StepFiles

    files = StepFiles(run_directory / "record")
    for step in files.steps():
        outcomes = files.outcomes(step)
        token_text = files.vocabulary(step)
        traces = files.trace_table(step).to_pylist()
"""

from rllm_record.steps.files import StepFiles
from rllm_record.steps.parquet import RecordError
from rllm_record.steps.rows import RecordedEpisode, RecordedOutcome, RecordedTrajectory, RecordedUpdate, Sampler

__all__ = [
    "RecordError",
    "RecordedEpisode",
    "RecordedOutcome",
    "RecordedTrajectory",
    "RecordedUpdate",
    "Sampler",
    "StepFiles",
]
