from .registry import resolve as resolve
from .requirements import missing as missing
from .specs import hookimpl as hookimpl
