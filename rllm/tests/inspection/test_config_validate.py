"""`rllm config validate FILE` finds what a run would find, says it in the same words, and trains nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from expecting import check_printed, check_values

from rllm.cli.main import main


class RejectionResult(NamedTuple):
    code: int
    out: str
    err: str


Judge = Callable[..., RejectionResult]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Judge:
    """Run `rllm WORDS` in this process, in a directory with the file `my.yaml`."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("RLLM_BLOCK_PLUGINS", ""), ("RLLM_DEBUG", "0"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> RejectionResult:
        return RejectionResult(main(words), *capsys.readouterr())

    return run


BAD = [
    # what is no configuration
    ("rllm: [", "YAML error in my.yaml, line 2, column 1: "),
    ("rllm: {rollout: {n: 1, n: 2}}", "YAML error in my.yaml"),
    ("- 1", "`my.yaml` contains a list, but a configuration is a mapping"),
    ("training: 3", "`training` is 3 (from my.yaml): expected a mapping."),
    # keys
    ("rllm: {rollout: {m: 3}}", "`m` is not a key of rllm.rollout (`rllm.rollout.m` from my.yaml)."),
    ("rllm: {algoritm: {seed: 1}}", "Write `rllm.algorithm`."),
    ("traner: {seed: 1}", "`traner` is not a section of the configuration (from my.yaml)."),
    ("trainer: {nnodes: 1}", "`trainer` (from my.yaml) belongs to backend verl, and this run has backend local."),
    ("rllm.rollout.n: 4", "Write it as nested mappings"),
    ("training: {learning_rat: 1}", "Write `training.learning_rate`."),
    ("rllm: {rollout: {m: 3, k: 4}}", "2 problems in the configuration:"),
    # values
    ("rllm: {rollout: {n: many}}", '`rllm.rollout.n` is "many" (from my.yaml): expected a whole number.'),
    ("rllm: {rollout: {n: 0}}", "`rllm.rollout.n` is 0 (from my.yaml): expected more than 0."),
    ("rllm: {rollout: {n: true}}", "expected a whole number"),
    ("rllm: {rollout: [1]}", "expected a mapping"),
    ("rllm: {algorithm: {loss_agg_mode: mean}}", "expected 'token-mean', 'token-sum'"),
    ("rllm: {trainer: {experiment_name: a/b}}", "expected text that matches the pattern"),
    ("rllm: {env: {env_args: {largest: '???'}}}", "`rllm.env.env_args.largest` must be given: it is `???` in my.yaml."),
    ("rllm: {trainer: {seed: '${rllm.trainer.sed}'}}", "which cannot be resolved"),
    ("rllm: {rollout: {n: '${rllm.rollout.n_val}', n_val: '${rllm.rollout.n}'}}", "which cannot be resolved"),
    ("rllm: {sdk: {proxy: {host: 0.0.0.0, admin_token: my-shared-secret}}}", "is rLLM's public default"),
    # plugins and their options
    ("rllm: {algorithm: {adv_estimator: grop}}", "Did you mean 'grpo'?"),
    ("rllm: {backend: vrel}", "Did you mean 'verl'?"),
    ("rllm: {trainer: {logger: [consol]}}", "Did you mean 'console'?"),
    ("rllm: {plugins: {allow: [rllm-view]}}", "rllm-local is blocked"),
    ("rllm: {algorithm: {adv_estimator: {name: grpo, beta: 1}}}", "adv_estimator.beta is 1: estimator 'grpo' has no"),
    ("rllm: {env: {env_args: {promt: hi}}}", "Did you mean 'prompt'?"),
    ("rllm: {env: {env_args: {largest: 0}}}", "rllm.env.env_args.largest is 0"),
    ("rllm: {workflow: {workflow_args: {gama: 1}}}", "Did you mean 'gamma'?"),
    ("rllm: {agent: {agent_args: {prompt: 1}}}", "agent 'math_agent' has no such option"),
    # what would have no effect, or cannot be honored
    ("rllm: {algorithm: {loss_fn: reinforce, eps_clip: 0.3}}", "This run uses loss reinforce."),
    ("rllm: {agent: {max_steps: 3}}", "no part of this run uses it"),
    ("model: {name: ./nowhere}", "model.name='./nowhere'"),
    ("rllm: {agent: {engine_args: {size: 1}}}", "No installed plugin reads it. Remove it."),
    ("rllm: {algorithm: {kl_estimator: k2}}", "has no effect while rllm.algorithm.kl_beta is 0."),
    ("rllm: {algorithm: {rollout_correction: {tis_mode: token, tis_floor: 2}}}", "Set a floor below 1"),
    ("critic: {clip: 0.2}", "needs values."),
    ("rllm: {rejection_sample: {mode: episode}}", "Set rllm.rejection_sample.enable=true as well, or remove this key."),
    ("rllm: {stepwise_advantage: {mode: per_step}}", "rllm.stepwise_advantage.mode"),
    ("rllm: {async_training: {enable: true, mini_batch_size: 8}}", "the groups of `data.train_batch_size` tasks"),
    ("rllm: {async_training: {enable: true, staleness_threshold: 0.5}}", "Set it to 1 (no token is older"),
    ("rllm: {sdk: {proxy: {port: 4001}}}", "set rllm.workflow.name=agent"),
    ("rllm: {trainer: {total_epochs: 2, total_batches: 3}}", "Set one of the two."),
    # what does not fit together
    ("rllm: {pipeline: {remove: [advantages]}}", "Stage 'update' reads 'batch.advantages'"),
    ("rllm: {pipeline: {insert: [{stage: log}]}}", "Write {stage: NAME, after: NAME}"),
    (
        "rllm: {workflow: {workflow_args: {env_cls: guess}}}",
        "env_cls or rllm.env.name.",
    ),
    (
        "rllm: {algorithm: {estimator_map: {a: {name: grpo, loss_fn: ppo}}, loss_map: {a: reinforce}}}",
        "Remove rllm.algorithm.loss_map.a.",
    ),
    # tasks
    ("data: {train_dataset: {name: jsonl, path: absent.jsonl}}", "absent.jsonl cannot be read"),
    ("data: {val_dataset: {name: jsonl, path: my.yaml}}", "not JSON"),
    ("data: {train_dataset: jsonl}", "data.train_dataset.path is not set"),
]


@pytest.mark.long
@pytest.mark.parametrize(("text", "message"), BAD, ids=[text for text, _ in BAD])
def test_a_mistake_in_a_file_gets_the_same_answer_as_from_a_run(judge: Judge, text: str, message: str) -> None:
    Path("my.yaml").write_text(text)
    result = judge("config", "validate", "my.yaml", "sum")
    assert message in result.err
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[")
    assert "Traceback" not in result.err
    assert "\n\n" not in result.err.strip()
    assert judge("train", "sum", "--config", "my.yaml") == result
    assert [path.name for path in Path().iterdir()] == ["my.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.yaml"], "[file-not-found]"),
        (["."], "[not-a-file]"),
        (["my.yaml"], "[no-environment]"),
        (["my.yaml", "gess"], "Did you mean 'guess'?"),
        (["my.yaml", "sum", "--estimator", "grop"], "Did you mean 'grpo'?"),
        (["my.yaml", "sum", "rllm.rollout.n"], "Write key=value"),
        (["my.yaml", "sum", "rllm.rollout.n=1,2"], "a sweep"),
        (["my.yaml", "sum", "--config", "absent.yaml"], "[file-not-found]"),
    ],
)
def test_a_mistake_in_the_words_gets_the_same_answer_as_from_a_run(
    judge: Judge, words: list[str], message: str
) -> None:
    Path("my.yaml").write_text("rllm: {rollout: {n: 4}}")
    result = judge("config", "validate", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert judge("train", "--config", *words) == result


def test_a_file_that_is_no_text_is_named(judge: Judge) -> None:
    Path("my.yaml").write_bytes(b"rllm: \xff")
    check_printed(judge("config", "validate", "my.yaml", "sum").err, "not-utf8", "`my.yaml`", "byte 6", "UTF-8.\n")


def test_a_plugin_that_cannot_be_loaded_is_found_as_a_run_finds_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    Path("my.yaml").write_text("rllm: {trainer: {logger: [wandb]}}")
    result = judge("config", "validate", "my.yaml", "sum")
    assert result.code == 2
    assert "wandb" in result.err
    trained = judge("train", "sum", "--config", "my.yaml")
    assert (trained.code, trained.err) == (2, result.err)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "",
        "rllm: {algorithm: {adv_estimator: rloo}}",
        "rllm: {agent: {agent_args: {system_prompt: guess}}, stepwise_advantage: {enable: true}}",
        "data: {train_dataset: {name: jsonl, path: tasks.jsonl}, val_dataset: {name: jsonl, path: others.jsonl}}",
    ],
)
def test_a_good_file_is_valid_and_trains(judge: Judge, text: str) -> None:
    Path("my.yaml").write_text(text)
    Path("tasks.jsonl").write_text('{"a": 1, "b": 2}\n')
    Path("others.jsonl").write_text('{"a": 1, "b": 3}\n')
    quick = ("sum", "rllm.trainer.total_batches=1", "rllm.rollout.n=2", "rllm.trainer.val_before_train=false")
    result = judge("config", "validate", "my.yaml", *quick)
    assert result.code == 0, result.err
    check_values(result.out, "my.yaml", "backend local", "workflow single_turn_workflow")
    assert not Path("runs").exists()
    trained = judge("train", "--config", "my.yaml", *quick)
    assert (trained.code, trained.err) == (0, result.err), "the same warnings"


def test_a_valid_file_says_what_would_run(judge: Judge) -> None:
    Path("my.yaml").write_text("rllm: {algorithm: {adv_estimator: rloo}, env: {env_args: {largest: 2}}}")
    (line,) = judge("config", "validate", "my.yaml", "sum").out.splitlines()
    check_values(line, "my.yaml", "backend local", "workflow single_turn_workflow", "estimator rloo")
    check_values(line, "loss importance_sampling", "9 training", "9 validation tasks")
