"""Where rewards find the final answer of a response, and responses without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rllm.builtin.tasks.final_answers import read_answer
from rllm_core.contracts.reward import Rollout

Make = Callable[..., Any]
MakeRollout = Callable[..., Rollout]

RIGHT = [
    ("42", "Let's see. 6*7=42. So the answer is **42**."),
    ("42", "**Final Answer:** 42"),
    ("42", "**Answer**: 42\n\nLet me know if you have questions."),
    ("42", "**Final Answer**\n\n$$42$$"),
    ("42", "### Final Answer\n42"),
    ("42", r"The final answer is: $\boxed{42}$. I hope it is correct."),
    ("42", "$$\\boxed{42}$$\n\nThis completes the solution."),
    ("18", "Therefore, Janet makes 18 dollars every day."),
    ("18", "She makes $18 every day at the market."),
    ("5", "Hence, x = 5."),
    ("5", "We get $x=5$."),
    ("5", "So, $a + b = 2 + 3 = 5$."),
    ("42", "I'm not sure, but the answer is 42."),
    ("42", "The answer is 42 because 6*7=42."),
    ("42", "The answer is 42 (since 6*7 = 42)."),
    ("43", "The answer is 43, not 42."),
    ("42", r"<think>43 or 44? not 42. \boxed{43}</think>The answer is 42."),
    ("42", "stuff 43</think>\n\n42"),
    ("yes", "Yes, because 2 is prime."),
    ("no", "The answer is no."),
    ("blue", "The color is blue."),
    ("42", "The answer to the question is 42."),
    ("42", "<answer>The answer is 42</answer>"),
    ("42", r"<answer>\boxed{42}</answer>"),
    ("42", "## Step 1\n#### Step 2: multiply\n6*7\n#### 42"),
    ("42", "42 is the final answer."),
    (r"\frac{1}{2}", r"The answer is $\frac{1}{2}$, or 0.5."),
    ("2, 3", r"so x=\boxed{2} or x=\boxed{3}"),
    ("2, 3", "The answers are 2 and 3."),
    ("42", "The answer is:\n\\[\n42\n\\]"),
    ("10:30", "The train arrives at 10:30."),
    ("3/4", r"The probability is $\frac{3}{4}$."),
    ("12", "\u7b54\u6848\u662f12\u3002"),
    ("8", "The answer is **8** books."),
    ("7", "The answer is an integer below 100.\n\\boxed{007}"),
    ("7", "A right answer is worth 5 points.\n#### 7"),
    ("7", "Answer: 7\n\nThe answer is found by adding 3 to 4."),
    ("7", "The answer is not 6 but 7."),
    ("-7", "The answer is minus 7."),
    ("7", r"\boxed{\textcolor{blue}{7}}"),
    ("7", "\uc815\ub2f5\uc740 7\uc785\ub2c8\ub2e4."),
    ("2^{10}", "1024"),
    ("3 + 4", "4 + 3"),
]
WRONG = [
    ("42", "The answer is not 42."),
    ("42", "The answer isn't 42."),
    ("42", r"The answer is definitely not \boxed{42}"),
    ("42", "42 is not the answer."),
    ("42", "42 is incorrect."),
    ("42", r"\boxed{42} is wrong."),
    ("42", "It is not true that the answer is 42."),
    ("42", "The answer is neither 42 nor 43"),
    ("42", "The answer is 42 or 43."),
    ("42", "It is either 42 or 43."),
    ("42", "The answer is 42. Or maybe 43."),
    ("42", "The answer is 42 (or 43)"),
    ("42", "The answer is 42 but could be 43"),
    ("42", "The answer is 42 if you are wrong, else 43."),
    ("42", "The answer is 42. The answer is 43."),
    ("42", r"\boxed{42} \boxed{43}"),
    ("42", r"\boxed{42} or \boxed{43}"),
    ("42", "\\boxed{42}\nThe answer is 43."),
    ("42", "<answer>42</answer><answer>43</answer>"),
    ("42", "The answer could be 42."),
    ("42", "The answer is 42?"),
    ("42", "<think>42</think>"),
    ("42", "<think>The answer is 42"),
    ("42", "<answer></answer>42"),
    ("42", "41, 42, 43"),
    ("42", "all numbers including 42"),
    ("42", "There are 42 apples and 43 pears."),
    ("42", "42 = 43"),
    ("42", r"\boxed{}"),
    ("42", r"\boxed{42"),
    ("42", "142"),
    ("42", "The answer is 4 2"),
    ("42", r"The answer is x \ne 42"),
    ("2", "Step 2: compute"),
    ("yes", "yes or no"),
    ("r^2", "\\boxed{r^2h}"),
    ("2n", r"\boxed{2N}"),
    ("1e-9", r"\boxed{2e-9}"),
    *(
        ("7", said)
        for said in (
            *(
                "at most 7",
                "The answer is half of 7.",
                "It is two more than 7",
                "7 cubed",
                "negative 7",
                "7 and a half",
            ),
            *("\\boxed{7}\n\nWait, this is not correct: it is 8.", "The answer is 7. Correction: 8.", "#### 8\n#### 7"),
            *("\\boxed{7}, which I know is wrong", "Assume that the answer is 7.", "The answer is 7 if n is odd."),
            *("3 + 4", "\\boxed{14 \\div 2}", "7 ft 2 in", "7_9", "See page 7"),
        )
    ),
    ("101_2", "101_3"),
]


@pytest.mark.parametrize(
    ("value", "answer", "said"), [(1.0, *each) for each in RIGHT] + [(0.0, *each) for each in WRONG]
)
def test_math_reads_final_answer(value: float, answer: str, said: str, make: Make, rollout: MakeRollout) -> None:
    assert make("math")(rollout(said, answer=answer)).value == value


CHOICES = {
    "B": [
        *(
            "B",
            "b",
            "(b)",
            "B.",
            "B) 42",
            "**B**",
            "[B]",
            "(b), not A",
            r"\boxed{\text{B}}",
            "$B$",
            "Option B",
            "B: Paris",
            "#### B",
        ),
        *("Answer: b", "**Answer:** B", "Final answer\n\nB", "<answer>b</answer>", "<answer>B) Paris</answer>"),
        *("The answer is B. Note that A is wrong.", "The answer is B because A is wrong.", "The answer is B, not A."),
        *(
            "The correct option is B.",
            "I choose B.",
            "So it must be B.",
            "A is wrong. B is right.",
            r"It is \boxed{B}.",
        ),
        *("\u7b54\u6848\u662fB", "\u7b54\u6848\uff1aB", "A) x\nB) y\n\nThe answer is B", "<think>A or C</think>B"),
    ],
    "C": ["C. A good guess.", "C) A or B is wrong"],
    "A": ["A. Better than B", "A is the answer.", "The answer is A because it fits.", "a"],
    "I": ["The answer is I.", "(I)", "I) Rome"],
    None: [
        *("", "I think it is good", "A good guess.", "A dog", "<answer>Paris</answer>", "Bad", "<think>B</think>"),
        *(
            "The answer is A or B.",
            "A, B, C, D",
            "The answer is A, B, C, or D.",
            "A) Paris\nB) Lyon",
            "A/B",
            "(A) and (B)",
        ),
        *(r"\boxed{A} \boxed{B}", "The answer is A. The answer is B.", "<answer>A</answer><answer>B</answer>"),
        *("It is not B.", "The answer is not B.", "Either A or B", "The answer could be B", "The answer is B?"),
        *("Hepatitis B is common", "Team C lost."),
    ],
}


@pytest.mark.parametrize(("letter", "said"), [(letter, said) for letter, all_ in CHOICES.items() for said in all_])
def test_choice_reads_final_letter(letter: str | None, said: str) -> None:
    assert read_answer(said, "choice", "ABCDEFGHIJ").text == letter


@pytest.mark.parametrize(
    ("said", "place", "text"),
    [
        (r"The answer is 1. \boxed{2} #### 3", "box", "2"),
        ("The answer is 1.\n#### 3", "####", "3"),
        ("<answer>4</answer>\n#### 3", "####", "3"),
        ("<answer>4</answer>\n5", "tag", "4"),
        ("4\n5", "last line", "5"),
    ],
)
def test_places_have_one_order(said: str, place: str, text: str) -> None:
    found = read_answer(said, "math")
    assert (found.place, found.text) == (place, text)


@pytest.mark.parametrize(
    ("said", "reason"), [("The answer is not 42.", "negated"), ("", "empty"), (r"\boxed{4", "not closed"), ("Hi!", "")]
)
def test_responses_without_answer_have_reasons(said: str, reason: str) -> None:
    found = read_answer(said, "math")
    assert found.text is None or reason == ""
    assert reason in found.reason


@pytest.mark.long
@pytest.mark.parametrize("form", ["math", "choice"])
@pytest.mark.parametrize(
    "piece", [r"\boxed{", "{", "answer is ", "<answer>", "$", r"\(", "\n", " ", ". ", "( ", "1 ", "<think>"]
)
def test_no_response_takes_long(piece: str, form: Any) -> None:
    started = time.process_time()
    read_answer(piece * (100_000 // len(piece)), form)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("said", "answer", "value"),
    [
        ("10\u00b2", "102", 0.0),
        ("\u00bd", "1/2", 0.0),
        ("<think>43</think>42", "42", 1.0),
        ("<think>42</think>", "42", 0.0),
        ("The answer is 42", "42", 0.0),
        ("4 2", "42", 0.0),
    ],
)
def test_exact_compares_whole_response(said: str, answer: str, value: float, make: Make, rollout: MakeRollout) -> None:
    assert make("exact")(rollout(said, answer=answer)).value == value
