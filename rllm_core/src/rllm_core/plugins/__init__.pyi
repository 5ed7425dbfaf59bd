from .markers import hookimpl as hookimpl
from .registry import resolve as resolve
from .requirements import missing as missing
