"""Start-up is fast because little is imported; what is imported can be tested without a clock."""

HEAVY = {"torch", "transformers", "numpy", "ray", "omegaconf", "hydra"}
PROGRAM = """
import sys
from rllm.cli.main import main
exit_code = main(sys.argv[1:])
sys.stdout = sys.stderr
print(*sys.modules, sep="\\n")
sys.exit(exit_code)
"""


def _imported(rllm_from_inside, *arguments: str) -> set[str]:
    finished = rllm_from_inside(PROGRAM, *arguments)
    assert finished.returncode == 0, finished.stderr
    return set(finished.stderr.split())


def test_help_imports_no_command_plugin_or_pydantic(rllm_from_inside, install, install_command) -> None:
    install("third-party")
    install_command("with-command", "act")

    imported = _imported(rllm_from_inside, "--help")

    assert "rllm.cli.main" in imported
    assert not imported & (HEAVY | {"pydantic", "pluggy", "rich", "third_party", "with_command", "rllm_tinker"})
    assert not imported & {"email", "zipfile"}, "importlib.metadata imports them"
    assert {name for name in imported if name.startswith("rllm.cli.")} == {
        "rllm.cli.main",
        "rllm.cli.command_groups",
        "rllm.cli.plugin_commands",
    }


def test_core_command_does_not_discover_plugin_commands(rllm_from_inside, install) -> None:
    install("third-party")
    assert "rllm.cli.plugin_commands" not in _imported(rllm_from_inside, "train", "--help")
    imported = _imported(rllm_from_inside, "plugins", "list", "--help")
    assert "rllm.cli.plugins" in imported
    assert not imported & {
        "rllm.cli.plugin_commands",
        "importlib.metadata",
        "third_party",
        "pydantic",
        "pluggy",
        "rich",
    }


def test_looking_at_plugins_imports_nothing_that_computes(rllm_from_inside, install) -> None:
    install("third-party")

    imported = _imported(rllm_from_inside, "plugins", "list")

    assert "third_party" in imported
    assert not imported & (HEAVY | {"asyncio", "email", "packaging", "rllm_core.schema.run_config"})
    assert not _imported(rllm_from_inside, "plugins", "info", "estimator", "grpo") & HEAVY


def test_every_contract_can_be_imported_without_what_computes(rllm_from_inside) -> None:
    program = """
import importlib, pkgutil, sys
import rllm_core.contracts as contracts
names = [module.name for module in pkgutil.iter_modules(contracts.__path__)]
for name in names:
    importlib.import_module(f"rllm_core.contracts.{name}")
for name in contracts.__all__:
    getattr(contracts, name)
print(len(names), *sys.modules, sep="\\n")
"""
    count, *imported = rllm_from_inside(program).stdout.split()

    assert int(count) > 5
    assert not set(imported) & (HEAVY | {"click", "rich"})
