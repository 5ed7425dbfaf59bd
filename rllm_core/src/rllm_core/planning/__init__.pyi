from .plan import ByRole as ByRole
from .unused_keys import shared_options as shared_options
