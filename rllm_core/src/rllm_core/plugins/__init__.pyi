from .registry import resolve as resolve
from .specs import hookimpl as hookimpl
