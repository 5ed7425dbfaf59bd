from .parts import resolve_parts as resolve_parts
from .plan import ByRole as ByRole, RunPlan as RunPlan
from .planner import shared_options as shared_options
from .preflight import (
    check_evaluation as check_evaluation,
    check_to_train as check_to_train,
    load_plugins as load_plugins,
)
from .unused_keys import acting_plugins as acting_plugins, core_key as core_key
