"""The tracker `wandb`: a run of Weights & Biases. Not named ``wandb``, which is the package's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rllm.builtin.trackers.episode_table import COLUMNS, TAG, EpisodeTableParams, table_rows
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.files import write_atomically

if TYPE_CHECKING:
    import wandb


class WeightsAndBiasesParams(EpisodeTableParams):
    # The default is 0, because text may leave this machine only if the user requests it.
    episodes: int = Field(0, ge=0)
    """Number of trajectories in a step's table. 0: no table and no text."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Mode of W&B. null: the value of the variable WANDB_MODE, or online."""
    entity: str | None = None
    """User or team that owns the run. null: the account's default."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    group: str | None = None
    """Group of the run in W&B."""


ID_FILE = "wandb_run_id"
"""File with the id under which a resumed run continues."""
SECONDS_TO_START = 30.0
SECONDS_TO_FINISH = 300.0
"""Time limits for starting and finishing, so that training does not hang without a network. The data stay on disk."""


class WeightsAndBiasesTracker(Observer):
    """Charts are over `step`, counted as everywhere.

    W&B's own counter is one ahead, because it has no -1 for the validation before the first step. It cannot go back
    either. If a resumed run repeats steps, W&B keeps their first values.
    """

    def __init__(self, run: TrackedRun, params: WeightsAndBiasesParams) -> None:
        self._tracked = run
        self._params = params
        self._run: wandb.Run | None = None
        self._ended = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._start(resumed=first_step > 0)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send one row. NaN and infinite numbers are shown as such."""
        run = self._run or self._start(resumed=False)
        run.log({**metrics, "step": global_step}, step=global_step + 1)

    def on_batch_end(self, step: TrainStep) -> None:
        """Send a table of a few trajectories."""
        import wandb

        if rows := table_rows(step, self._params):
            table = wandb.Table(columns=[*COLUMNS], data=[[*row] for row in rows])
            run = self._run or self._start(resumed=False)
            run.log({TAG: table, "step": step.global_step}, step=step.global_step + 1)

    def on_train_end(self, global_step: int) -> None:
        self._ended = True

    def close(self) -> None:
        """Wait until everything is sent. A run that did not come to its end is shown as failed."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=0 if self._ended else 1)

    def _start(self, *, resumed: bool) -> wandb.Run:
        import wandb

        id_file = self._tracked.directory / ID_FILE
        if self._params.mode != "disabled":
            # Before anything else: a silent client does not ask the terminal for a key in the middle of a run.
            wandb.setup(wandb.Settings(silent=True))
        self._run = wandb.init(
            project=self._tracked.project_name,
            name=self._tracked.experiment_name,
            config=dict(self._tracked.config),
            dir=str(self._tracked.directory),
            id=id_file.read_text(encoding="utf-8").strip() if resumed and id_file.exists() else None,
            resume="allow",
            mode=self._params.mode,
            entity=self._params.entity,
            tags=self._params.tags or None,  # an empty list would take a resumed run's tags away
            group=self._params.group,
            # Neither ends nor joins another run of this process.
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",  # what is printed is the console tracker's, and it redraws its line
                init_timeout=SECONDS_TO_START,
                finish_timeout=SECONDS_TO_FINISH,
                finish_timeout_raises=True,
            ),
        )
        write_atomically(id_file, self._run.id + "\n")
        self._run.define_metric("*", step_metric="step")
        return self._run
