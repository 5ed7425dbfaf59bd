from .plan import ByRole as ByRole, RunPlan as RunPlan
from .preflight import check_to_play as check_to_play
from .unused_keys import shared_options as shared_options
