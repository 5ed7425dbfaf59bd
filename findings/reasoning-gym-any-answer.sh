#!/usr/bin/env bash
# Two tasks of reasoning-gym give the full score to one constant answer.
#
# Versions: reasoning-gym 0.1.25.
#
# Expected: the scorer of a procedural task compares an answer with its question, so a constant answer is right by luck
# only. About half of the answers "False" are right for the yes-or-no question of `game_of_life_halting`.
#
# Observed:
# - `puzzle24` checks that four numbers in the allowed range give 24. It never compares them with the numbers of the
#   question.
# - `game_of_life_halting` compares `bool(answer)` with `bool(correct)`. Both are strings, and each string that is not
#   empty is true, so every answer is right.
#
# Output (mean score of 100 tasks):
#   puzzle24              (1+2+3)*4   1.0
#   puzzle24              24          0.01
#   game_of_life_halting  True        1.0
#   game_of_life_halting  False       1.0
#   game_of_life_halting  no idea     1.0
#   correct answers of game_of_life_halting: False and True
#
# Why it matters: reinforcement learning finds such an answer in a few steps. The reward curve then looks perfect, and
# in a mixture these tasks push the policy toward an answer without reasoning.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile reasoning-gym==0.1.25
venv/bin/python -W ignore - <<'END'
import sys

import reasoning_gym

observed = {}
for name, answers in (("puzzle24", ["(1+2+3)*4", "24"]), ("game_of_life_halting", ["True", "False", "no idea"])):
    tasks = reasoning_gym.create_dataset(name, size=100, seed=3)
    for answer in answers:
        scores = [tasks.score_answer(answer, task) for task in tasks]
        observed[name, answer] = round(sum(scores) / len(scores), 4)
        print(f"{name:22}{answer:12}{observed[name, answer]}")
correct = sorted({task["answer"] for task in tasks})
print("correct answers of game_of_life_halting:", " and ".join(correct))
if list(observed.values()) != [1.0, 0.01, 1.0, 1.0, 1.0] or correct != ["False", "True"]:
    sys.exit("The behavior changed.")
END
