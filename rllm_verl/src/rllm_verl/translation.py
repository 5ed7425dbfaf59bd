"""Translation of a config for verl's own trainer to an rllm config, beyond the tables in `rllm_verl.keys`.

Here several verl keys become one rllm key, or the meaning of a key depends on a second key. The tables at the start
list keys and defaults of verl's trainer that differ from rllm's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rllm_core.contracts.backend import Translation
from rllm_verl.keys import ACTOR, ALGORITHM, MODEL, REF, ROLLOUT

VAL = f"{ROLLOUT}.val_kwargs"
FILTER = "algorithm.filter_groups"
REJECTION = "rllm.rejection_sample"
MINIBATCHES = "training.num_minibatches"
RENAMED = {
    f"{ACTOR}.grad_clip": f"{ACTOR}.optim.clip_grad",
    f"{ACTOR}.use_remove_padding": f"{MODEL}.use_remove_padding",
    f"{ACTOR}.use_fused_kernels": f"{MODEL}.use_fused_kernels",
    f"{ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{ROLLOUT}.response_length": "data.max_response_length",
    "data.seed": "rllm.trainer.seed",
    "data.prompt_key": "rllm.env.env_args.prompt",
}
"""Keys with a different name and the same meaning."""
DEFAULTS = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ALGORITHM}.adv_estimator": "gae",
    "rllm.rollout.n": 1,
    "rllm.trainer.total_epochs": 30,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.save_freq": -1,
}
"""Defaults of verl's trainer that differ from rllm's defaults."""
PPO_MINI_BATCH_SIZE, KL_LOSS_COEF, KL_REWARD_COEF, CLIP_RATIO_C, CLIP_RATIO_HIGH = 256, 0.001, 0.001, 3.0, 0.2
MICRO_BATCHES = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{REF}.log_prob_micro_batch_size_per_gpu",
)
DATA_SIDES = {"train": "data.train_dataset", "val": "data.val_dataset"}
ONE_FILE = "A dataset must be one file or directory. Put the files into a directory and set {ours} to it."
FILLED = f"Micro-batches are filled with tokens, up to {ACTOR}.ppo_max_token_len_per_gpu."
NO_KL = f"{ACTOR}.use_kl_loss is false, so the loss has no KL term."
NOT_IN_REWARD = "algorithm.use_kl_in_reward is false, so the reward has no KL term."
IN_REWARD = "rllm has no KL term in the reward. For a KL term in the loss, set {ours}={weight}."
NO_REWARD = "verl selects a row's reward by its data_source. Set a reward: `--reward NAME`, or rllm.reward in the file."
OTHER_FILE = "Convert that file as well, and pass both: --config FILE --config THIS."


def translate(given: Mapping[str, Any]) -> Translation:
    """Translate a configuration of verl's trainer, or of rLLM with the backend verl.

    Args:
        given: dotted keys with plain values, as in YAML, including Hydra's options (``--config-name``). If it contains
            rLLM keys (``rllm.*``), it is treated as an rLLM config, which has the same defaults as rllm.
    """
    translator = _Translator(given)
    translator.run()
    return Translation(
        values=translator.values,
        renamed=translator.renamed,
        left_out=translator.left_out,
        defaults=translator.defaults,
        notes=tuple(translator.notes),
    )


class _Translator:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._of_verl = not any(key.startswith("rllm") for key in given)
        self.values: dict[str, Any] = {}
        self.renamed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.defaults: dict[str, Any] = dict(DEFAULTS) if self._of_verl else {}
        self.notes: list[str] = []

    def run(self) -> None:
        for theirs, ours in RENAMED.items():
            if self._given.get(theirs) is not None:
                self._set(ours, self._given[theirs], theirs)
        for side, dataset in DATA_SIDES.items():
            self._data(side, dataset)
        for section in ("custom_reward_function", "reward.custom_reward_function"):
            self._reward(section)
        if self._of_verl and "rllm.reward" not in self.values:
            self.notes.append(NO_REWARD)
        self._hydra()
        self._clipping()
        self._loss()
        self._divergence()
        self._divergence_in_reward()
        self._minibatches()
        self._micro_batches()
        self._adapter()
        self._validation()
        self._filter()
        if self._given.get(f"{ROLLOUT}.mode", "async") != "async":
            self.left_out[f"{ROLLOUT}.mode"] = "Rollout servers always run in async mode."

    def _set(self, ours: str, value: Any, *theirs: str) -> None:
        self.values[ours] = value
        self.renamed |= {key: ours for key in theirs if key in self._given}

    def _leave(self, why: str, *theirs: str) -> None:
        self.left_out |= {key: why for key in theirs if key in self._given}

    def _data(self, side: str, ours: str) -> None:
        key, most = f"data.{side}_files", f"data.{side}_max_samples"
        files = self._given.get(key)
        names = files if isinstance(files, list) else [files]
        if key not in self._given or files is None:
            return
        if len(names) != 1:
            self._leave(ONE_FILE.format(ours=ours), key, most)
            return
        limit = self._given.get(most)
        some = {"limit": limit} if isinstance(limit, int) and limit > 0 else {}
        self._set(ours, {"name": "hf", "path": names[0], **some}, key, most)
        if self._of_verl:
            self.values["rllm.env.name"] = "question"

    def _reward(self, section: str) -> None:
        file, function = f"{section}.path", f"{section}.name"
        if self._given.get(file) is None:
            return
        name = self._given.get(function) or "compute_score"
        self._set("rllm.reward", [{"name": "python", "function": f"{self._given[file]}:{name}"}], file, function)
        arguments = [key for key in self._given if key.startswith(f"{section}.reward_kwargs")]
        self._leave(f"Set these values as defaults of the parameters of {name}.", *arguments)

    def _hydra(self) -> None:
        file, engine = str(self._given.get("--config-name", "ppo_trainer")), "model_engine"
        if any("megatron" in str(each) for each in (file, self._given.get(engine))):
            self._set("rllm.profile", "megatron", "--config-name", "--config-path", engine)
        elif file.removesuffix(".yaml") != "ppo_trainer":
            self._leave(OTHER_FILE, "--config-name", "--config-path")
        else:
            self._leave("It selects verl's own config file, which rllm loads anyway.", "--config-name", "--config-path")

    def _clipping(self) -> None:
        """Translate the clip ratios. If both bounds are set, verl does not read `clip_ratio`."""
        both, low, high = (f"{ACTOR}.clip_ratio{end}" for end in ("", "_low", "_high"))
        if low not in self._given:
            return
        self._set(f"{ALGORITHM}.eps_clip", self._given[low], low)
        self._leave(f"verl reads {low} instead.", both)
        if self._of_verl and high not in self._given:
            self.defaults[f"{ALGORITHM}.eps_clip_high"] = CLIP_RATIO_HIGH

    def _loss(self) -> None:
        """Translate the loss. verl's default loss bounds the ratio for negative advantages, rllm's only on request."""
        mode, bound = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.clip_ratio_c"
        if self._given.get(mode, "vanilla") != "vanilla":
            return
        chosen = {"name": "ppo", "clip_ratio_c": self._given.get(bound, CLIP_RATIO_C)}
        if mode in self._given or bound in self._given:
            self._set(f"{ALGORITHM}.loss_fn", chosen, mode, bound)
        elif self._of_verl:
            self.defaults[f"{ALGORITHM}.loss_fn"] = chosen

    def _divergence(self) -> None:
        switch, weight, kind = f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"
        if switch not in self._given and not self._of_verl:
            return
        if self._given.get(switch):
            self._set(f"{ALGORITHM}.kl_beta", self._given.get(weight, KL_LOSS_COEF), switch, weight)
        else:
            self._set(f"{ALGORITHM}.kl_beta", 0.0, switch)
            self._leave(NO_KL, weight, kind)

    def _divergence_in_reward(self) -> None:
        """Report verl's KL term in the reward, which differs from a KL term in the loss after normalization."""
        switch, weight = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"
        details = [key for key in self._given if key.startswith(("algorithm.kl_ctrl.", "algorithm.kl_penalty"))]
        if self._given.get(switch):
            beta = self._given.get(weight, KL_REWARD_COEF)
            self._leave(IN_REWARD.format(ours=f"{ALGORITHM}.kl_beta", weight=beta), switch, *details)
        else:
            self._leave(NOT_IN_REWARD, switch, *details)

    def _minibatches(self) -> None:
        size, batch = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
        tasks = self._given.get(size, PPO_MINI_BATCH_SIZE if self._of_verl else None)
        drawn = self._given.get(batch, DEFAULTS[batch] if self._of_verl else 64)
        if isinstance(tasks, int) and isinstance(drawn, int) and tasks > 0:
            self._set(MINIBATCHES, max(1, math.ceil(drawn / tasks)), size)

    def _micro_batches(self) -> None:
        switch = f"{ACTOR}.use_dynamic_bsz"
        rows = self._given.get(MICRO_BATCHES[0])
        if self._given.get(switch) or rows is None:
            self._leave(FILLED, *MICRO_BATCHES, *([] if self._given.get(switch) else [switch]))
            return
        self._set(switch, False, switch)
        for key in MICRO_BATCHES:
            self._set(key, self._given.get(key, rows), key)

    def _adapter(self) -> None:
        """Translate Megatron's adapter keys, which rLLM's scripts also set for FSDP."""
        if self.values.get("rllm.profile") == "megatron" or self._given.get(f"{ACTOR}.strategy") == "megatron":
            return
        for name in ("rank", "alpha"):
            key = f"{MODEL}.lora.{name}"
            if key in self._given:
                self._set(f"{MODEL}.lora_{name}", self._given[key], key)

    def _validation(self) -> None:
        switch, warmth = f"{VAL}.do_sample", f"{VAL}.temperature"
        if not self._of_verl and switch not in self._given and warmth not in self._given:
            return
        if self._given.get(switch, not self._of_verl):
            self._set("sampling.val.temperature", self._given.get(warmth, 0.0), switch, warmth)
        else:
            self._set("sampling.val.temperature", 0.0, switch)
            self._leave(f"{switch} is false, so decoding is greedy.", warmth, f"{VAL}.top_p", f"{VAL}.top_k")

    def _filter(self) -> None:
        switch, most, metric = f"{FILTER}.enable", f"{FILTER}.max_num_gen_batches", f"{FILTER}.metric"
        if not self._given.get(switch):
            return
        self._set(f"{REJECTION}.mode", "dynamic", switch)
        self.values[f"{REJECTION}.enable"] = True
        if isinstance(batches := self._given.get(most), int) and batches > 0:
            self._set(f"{REJECTION}.max_gen_batches", batches, most)
        self._leave("rllm drops a group if all of its rewards are equal.", metric)
