"""Tasks of inspect: several kinds of solvers and scorers, and tasks that fail."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import Score, choice, match, mean, model_graded_qa, scorer
from inspect_ai.solver import generate, multiple_choice, solver, system_message, use_tools
from inspect_ai.tool import tool


@task
def sums(count: int = 5, first: int = 1):
    samples = [
        Sample(input=f"What is {number} + {number}?", target=str(2 * number)) for number in range(first, first + count)
    ]
    return Task(dataset=samples, solver=[system_message("Reply with a number."), generate()], scorer=match())


@task
def letters():
    samples = [
        Sample(input=f"Which letter is number {number}?", choices=["x", "y", "z"], target=target)
        for number, target in enumerate("ABC")
    ]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@tool
def clock():
    async def execute(city: str) -> str:
        """Return the hour in a city.

        Args:
            city: Name of the city.
        """
        return {"Paris": "It is 9 there.", "Lima": "It is 3 there."}[city]

    return execute


@task
def hours():
    samples = [
        Sample(input=f"Which hour is it in {city}?", target=hour) for city, hour in {"Paris": "9", "Lima": "4"}.items()
    ]
    return Task(dataset=samples, solver=[use_tools(clock()), generate()], scorer=match(location="any"))


@task
def graded():
    samples = [Sample(id=name, input=f"Say {name}.", target=f"{name}!") for name in ("odd", "one", "two")]
    return Task(dataset=samples, solver=generate(), scorer=model_graded_qa(partial_credit=True))


@solver
def hints(turns: int):
    async def solve(state, generate):
        for _ in range(turns):
            state = await generate(state)
            if state.output.completion == state.target.text:
                break
            state.messages.append(ChatMessageUser(content="Higher."))
        return state

    return solve


@scorer(metrics={"right": [mean()], "turns": [mean()]})
def right_and_turns():
    async def score(state, target):
        said = [each.text for each in state.messages if each.role == "assistant"]
        return Score(value={"right": "C" if said[-1] == target.text else "I", "turns": len(said)})

    return score


@task
def guesses(turns: int = 3, turn_limit: int | None = None):
    samples = [Sample(input="Guess my number.", target=target) for target in ("1", "3", "9")]
    return Task(dataset=samples, solver=hints(turns), scorer=right_and_turns(), turn_limit=turn_limit)


@solver
def failing():
    async def solve(state, generate):
        state = await generate(state)
        if state.input_text == "solver":
            raise ValueError("the solver is broken")
        return state

    return solve


@scorer(metrics=[mean()])
def values():
    async def score(state, target):
        if state.input_text == "scorer":
            raise ValueError("the scorer is broken")
        return {
            "nan": Score.unscored(reason="no grade"),
            "text": Score(value="perhaps"),
            "list": Score(value=[1, 2]),
        }.get(state.input_text, Score(value=0.5))

    return score


@task
def faults():
    samples = [Sample(input=kind) for kind in ("fine", "solver", "scorer", "nan", "text", "list")]
    return Task(dataset=samples, solver=failing(), scorer=values())


@task
def unscored():
    return Task(dataset=[Sample(input="hi")], solver=generate())


@task
def repeated(ids: tuple = ("x", 1, "1")):
    return Task(dataset=[Sample(id=each, input="hi") for each in ids], solver=generate(), scorer=match())


@solver
def stopping():
    async def solve(state, generate):
        raise KeyError("no model call")

    return solve


@task
def stopped():
    return Task(dataset=[Sample(input="hi")], solver=stopping(), scorer=match())
