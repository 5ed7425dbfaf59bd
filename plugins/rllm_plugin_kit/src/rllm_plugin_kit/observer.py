"""The contract of observers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.observer import Observer, ObserverPlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import did_you_mean
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.run_events import EVENTS, LOG, STEPS, Event, events
from rllm_plugin_kit.steps import find_changed_aspects, snapshot

VETO = "on_validation_start"
RUNS = {
    "a whole run": (0, STEPS),
    "a resumed run": (2, STEPS),
    "a run that is stopped after a step": (0, 1),
    "a run without a step left": (STEPS, STEPS),
}


class ObserverContract(PluginContract[ObserverPlugin[Any]]):
    """Contract of every observer. It receives the events of fake runs, in the order of the training loop."""

    kind = "observer"
    deterministic: ClassVar[bool] = True
    """True if the same run always gets the same vetoes."""

    def test_methods_are_known_events(self, params: Any) -> None:
        """The training loop would never call a misspelt method."""
        observer = self._make_observer(params)
        for name in dir(observer):
            if name.startswith("on_") and name not in EVENTS:
                raise self.failure(
                    f"has a method {name}, which is not an event", f"{did_you_mean(name, EVENTS)} Or rename the method."
                )
            if name in EVENTS and inspect.iscoroutinefunction(getattr(observer, name)):
                raise self.failure(
                    f"has a coroutine function {name}, which rllm does not await",
                    f"Write `def {name}(…)` without `async`.",
                )

    @pytest.mark.parametrize("run", RUNS)
    def test_any_run_can_be_observed(self, params: Any, run: str) -> None:
        self._watch(self._make_observer(params), events(*RUNS[run]), run)

    def test_veto_is_a_bool(self, params: Any) -> None:
        for finished, vote in self._votes(params):
            if not isinstance(vote, bool):
                raise self.failure(
                    f"answers {VETO}({finished}) with {vote!r}",
                    "Return True for a validation that is to be made, and False for one that is not.",
                )

    def test_same_run_gets_same_vetoes(self, params: Any) -> None:
        """Also the second of a process: `rllm` may train several runs in one."""
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        if self._votes(params) != self._votes(params):
            raise self.failure(
                "votes differently in a second run", "Store its state in the instance, not in the class."
            )

    def test_it_does_not_change_steps(self, params: Any) -> None:
        observer = self._make_observer(params)
        for event in self._drop_logs(events()):
            (step, *_) = event.arguments
            before = _content(step) if isinstance(step, TrainStep) else repr(event.arguments)
            self._notify(observer, event, "a whole run")
            after = _content(step) if isinstance(step, TrainStep) else repr(event.arguments)
            if before != after:
                what = ", ".join(_differing(before, after))
                raise self.failure(
                    f"changes {what or 'the metrics of a validation'} in {event.name}",
                    "An observer must not change a step. Write a stage to change it.",
                )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        self.check_process_state(
            lambda: self._watch(self._make_observer(params), events(), "a whole run"),
            "Put back what it changes, by then.",
            when=" after on_train_end",
        )

    def _make_observer(self, params: Any) -> Observer:
        observer = self.make(params, called_with="the options, once per run")
        if not isinstance(observer, Observer):
            raise self.failure(
                f"makes {observer!r:.80}, which has not all methods of an observer",
                "Derive its class from rllm_core.contracts.Observer.",
            )
        return observer

    def _watch(self, observer: Observer, life: Iterable[Event], run: str) -> list[tuple[int, Any]]:
        """Its votes, by finished steps."""
        votes = []
        for event in self._drop_logs(life):
            answer = self._notify(observer, event, run)
            if event.name == VETO:
                votes.append((event.arguments[0], answer))
        return votes

    def _votes(self, params: Any) -> list[tuple[int, Any]]:
        return self._watch(self._make_observer(params), events(), "a whole run")

    def _drop_logs(self, life: Iterable[Event]) -> list[Event]:
        return [event for event in life if event.name != LOG]

    def _notify(self, observer: Observer, event: Event, run: str) -> Any:
        with self.explain_errors(
            f"failed in {event.name} of {run}", "Correct the error. An exception in an observer stops the run."
        ):
            return getattr(observer, event.name)(*event.arguments)


def _content(step: TrainStep) -> dict[str, object]:
    plain = {name: repr(getattr(step, name)) for name in ("metrics", "timing_dict", "extras", "skip_reason")}
    return snapshot(step) | plain


def _differing(before: Any, after: Any) -> list[str]:
    if not isinstance(before, dict):
        return []
    plain = [name for name in ("metrics", "timing_dict", "extras", "skip_reason") if before[name] != after[name]]
    return [*plain, *find_changed_aspects(before, after)]
