"""The function that `rllm plugins new --from` ports: found by its name in an installed package, or in a file."""

from __future__ import annotations

import dis
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from rllm_core.errors import PluginError, did_you_mean
from rllm_core.lazy import import_single_module

HOMES = {
    "verl": ("verl.trainer.ppo.core_algos",),
    "openrlhf": ("openrlhf.models.loss", "openrlhf.trainer.ppo_utils.experience_maker"),
    "trl": ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"),
}
"""Package -> the modules to search if `--from` has only the name of a function or a class."""
INSTALL = {"openrlhf": "pip install deepspeed && pip install --no-deps openrlhf"}
"""Package -> the command that installs the requirements of its losses, if `pip install PACKAGE` needs a GPU."""
PORTABLE = {
    "openrlhf": (
        "openrlhf:PolicyLoss (--kind loss)",
        "openrlhf:RemoteExperienceMaker.get_cumulative_returns or .get_advantages_and_returns",
    ),
    "trl": ("trl:GRPOTrainer or trl:RLOOTrainer (--kind loss)", "your own function of `rewards` and `num_generations`"),
}
"""Package -> the functions that `--from` can port, for errors."""
Form = Literal["function", "method", "module", "trainer"]
TRAINER_LOSS = "_compute_loss"
"""The method of TRL's trainers that computes the loss."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A function to port."""

    function: Callable[..., Any]
    """The function. Or the `forward` of a class of torch, or the method for the loss of a trainer of TRL."""
    name: str
    """The function's name in its module or class. A class of torch has its own name."""
    form: Form = "function"
    """``module`` is a class of torch with `forward`. ``method`` does not use `self`. ``trainer`` is a class of TRL."""
    owner: type | None = None
    """The class. None if the form is ``function``."""
    module: str
    """The module in an installed package. Empty for a file, which the new package contains."""
    file: Path | None
    """The file to copy into the new package. None for a function of an installed package."""

    @property
    def package(self) -> str:
        """The installed package: ``verl``. Empty for a file."""
        return self.module.partition(".")[0]

    @property
    def origin(self) -> str:
        """The function with its module or file, for text."""
        return f"{self.module}.{self.full_name}" if self.file is None else f"{self.file.name}:{self.full_name}"

    @property
    def symbol(self) -> str:
        """The name to import from the module or the file."""
        return self.name if self.owner is None else self.owner.__name__

    @property
    def full_name(self) -> str:
        """The name with its class: ``RemoteExperienceMaker.get_cumulative_returns``."""
        return self.name if self.symbol == self.name else f"{self.symbol}.{self.name}"

    @property
    def requirement(self) -> str:
        """The requirement on the installed package, with its version as the lowest: ``verl>=0.9.1``."""
        try:
            return f"{self.package}>={version(self.package)}"
        except PackageNotFoundError:
            return self.package


def install_command(package: str) -> str:
    """Return the command that installs a package."""
    return INSTALL.get(package, f"pip install {package}")


def find_source(text: str) -> Source:
    """Return the function that a value of `--from` names.

    Args:
        text: ``PACKAGE:MODULE.FUNCTION``, ``PACKAGE:FUNCTION`` for a package in `HOMES`, or ``FILE.py:FUNCTION``.
            Instead of a function, it can name a class, or a method of a class: ``CLASS.METHOD``.

    Raises:
        PluginError: there is no such function, its module cannot be imported, or it needs an object of its class.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise PluginError(
            "bad-source",
            f"--from {text!r} does not name a function.",
            "Write PACKAGE:MODULE.FUNCTION, such as verl:compute_rloo_outcome_advantage, or FILE.py:FUNCTION.",
        )
    if place.endswith(".py"):
        return _find_in_file(Path(place), name)
    parts = name.removeprefix(f"{place}.").split(".")
    # A class starts with a capital letter. The rest is a module.
    start = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    inner, path = ".".join(parts[:start]), parts[start:]
    modules = (f"{place}.{inner}",) if inner else HOMES.get(place, (place,))
    guess = "" if place in HOMES else did_you_mean(place, HOMES)
    hint = guess or f"Install it: {install_command(place)}."
    hint += f" To port your own function, write its file: --from FILE.py:{path[-1]}."
    loaded: dict[str, Any] = {}
    for module in modules:
        if not any(hasattr(each, path[0]) for each in loaded.values()):
            loaded[module] = _import(partial(import_single_module, module), module, hint)
    module = next((module for module, each in loaded.items() if hasattr(each, path[0])), modules[0])
    return _find_in(loaded[module], path, module, module=module, file=None)


def _find_in_file(file: Path, name: str) -> Source:
    if not file.is_file():
        raise PluginError("file-not-found", f"--from names {file}, which is no file.", "Correct its path.")

    def load() -> Any:
        spec = importlib.util.spec_from_file_location(f"_ported_{file.stem}", file)
        assert spec is not None and spec.loader is not None, "the name ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Dataclasses look their module up.
        spec.loader.exec_module(module)
        return module

    loaded = _import(
        load, str(file), "The new package contains a copy of the file, so it must not import its neighbors."
    )
    return _find_in(loaded, name.split("."), str(file), module="", file=file)


def _import(load: Callable[[], Any], what: str, hint: str) -> Any:
    try:
        return load()
    except Exception as error:
        raise PluginError(
            "source-not-importable", f"{what} cannot be imported: {type(error).__name__}: {error}.", hint
        ) from error


def _find_in(loaded: Any, path: list[str], where: str, *, module: str, file: Path | None) -> Source:
    """Return the function, the class or the method of a module with the names in `path`."""
    found, name = getattr(loaded, path[0], None), path[-1]
    if inspect.isclass(found):
        method = (
            path[1] if len(path) > 1 else next((each for each in ("forward", TRAINER_LOSS) if hasattr(found, each)), "")
        )
        if method == TRAINER_LOSS and hasattr(found, method):
            return Source(
                function=getattr(found, method), name=method, form="trainer", owner=found, module=module, file=file
            )
        if method == "forward" and hasattr(found, method):
            return Source(
                function=partial(getattr(found, "forward"), None),  # noqa: B009
                name=found.__name__,
                form="module",
                owner=found,
                module=module,
                file=file,
            )
        function = inspect.getattr_static(found, method, None)
        if isinstance(function, staticmethod | FunctionType):
            _check_self(found, method, where)
            bound = function.__func__ if isinstance(function, staticmethod) else partial(function, None)
            return Source(function=bound, name=method, form="method", owner=found, module=module, file=file)
    if len(path) == 1 and inspect.isfunction(found):
        return Source(function=found, name=name, module=module, file=file)
    problem = f"has no function {name!r}"
    if len(path) == 1 and found is not None:
        problem = f"has {name!r}, which is not a function, and no class with `forward`"
    names = [each for each, value in vars(loaded).items() if inspect.isfunction(value)]
    hint = did_you_mean(".".join(path), names) or list_portable(where)
    hint = hint or f"Its functions: {', '.join(sorted(names)[:4]) or 'none'}."
    raise PluginError("source-not-found", f"{where} {problem}.", hint)


def _check_self(owner: type, method: str, where: str) -> None:
    """Raise a PluginError if a method needs an object of its class."""
    used = _attributes_of_self(inspect.getattr_static(owner, method))
    if not used:
        return
    names = ", ".join(f"self.{name}" for name in sorted(used)[:3])
    raise PluginError(
        "argument-not-available",
        f"{owner.__name__}.{method} uses {names}, so rllm cannot call it without its object.",
        f"{list_portable(where)}Or copy the lines into a function: --from my_file.py:my_function.",
    )


def list_portable(where: str) -> str:
    """Return a sentence with the functions of a module's package that can be ported. Empty for other packages."""
    names = PORTABLE.get(where.partition(".")[0], ())
    return f"You can port {' and '.join(names)}. " if names else ""


def _attributes_of_self(function: Any) -> set[str]:
    """Return the attributes of `self` that a method uses. Empty for a static method."""
    if isinstance(function, staticmethod):
        return set()
    return _attributes_in(inspect.unwrap(function).__code__)


def _attributes_in(code: CodeType) -> set[str]:
    used: set[str] = set()
    for before, after in pairwise(dis.get_instructions(code)):
        names = before.argval if isinstance(before.argval, tuple) else (before.argval,)
        if before.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and names[-1] == "self":
            used.add(str(after.argval))
    return used.union(*(_attributes_in(each) for each in code.co_consts if isinstance(each, CodeType)))
