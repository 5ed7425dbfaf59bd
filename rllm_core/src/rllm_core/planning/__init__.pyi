from .plan import ByRole as ByRole, RunPlan as RunPlan
from .unused_keys import shared_options as shared_options
