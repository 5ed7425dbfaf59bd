from .resume_checks import RunSources as RunSources
from .setup import GroupRunner as GroupRunner, load_tasks as load_tasks, open_runner as open_runner
from .validation import validation_order as validation_order
