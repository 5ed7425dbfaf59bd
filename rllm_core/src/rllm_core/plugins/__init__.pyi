from .markers import hookimpl as hookimpl
from .requirements import missing as missing
from .resolving import resolve as resolve
