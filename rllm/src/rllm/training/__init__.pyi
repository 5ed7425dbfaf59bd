from .run_sources import RunSources as RunSources
from .setup import open_runner as open_runner, tasks_of as tasks_of
from .validation import validation_order as validation_order
