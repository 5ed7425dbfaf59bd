"""The record of a run, a pair of Parquet files per step: what was played, and what became of it.

Nothing of a running process is needed to read it, and it can be read while the run goes on:

    from rllm_record.steps import StepFiles

    files = StepFiles(run_folder / "record")
    for step in files.steps():
        fates = files.fates(step)
"""

from rllm_record.steps.errors import RecordError
from rllm_record.steps.files import StepFiles
from rllm_record.steps.rows import PlayedEpisode, PlayedTrajectory, RecordedFate, Sampler

__all__ = ["PlayedEpisode", "PlayedTrajectory", "RecordError", "RecordedFate", "Sampler", "StepFiles"]
