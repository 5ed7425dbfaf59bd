#!/usr/bin/env bash
# `NormalizeReward` of Gymnasium makes the first reward 70 times larger, and equal rewards larger at each episode.
#
# Versions: gymnasium 1.4.0, numpy 2.4.6.
#
# Expected: rewards of 1 stay near 1, as the name of the wrapper promises. A first reward is unchanged.
#
# Observed: the wrapper divides by the standard deviation of the discounted return. At first this deviation is almost 0,
# so the first reward is 70.71. A note in the documentation mentions only that a new wrapper scales incorrectly. In
# episodes with one step and equal rewards, the reward grows with the square root of the number of episodes.
#
# Output (each reward is 1):
#   episodes of 3 steps   [70.71, 2.02, 2.14, 2.02, 1.36, 1.36]
#   episodes of 1 step    [70.71, 100.0, 122.47, 141.41, 158.1, 173.18]
#
# Why it matters: a single-turn task is an episode with one step. If the policy solves each of the first tasks, the
# wrapper multiplies its rewards by more than a hundred, and one update of the policy can destroy it.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile gymnasium==1.4.0 numpy==2.4.6
venv/bin/python - <<'END'
import sys

import gymnasium
import numpy


class Example(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return numpy.zeros(1), {}

    def step(self, action):
        self.left -= 1
        return numpy.zeros(1), 1.0, self.left == 0, False, {}


def normalize(length):
    environment, rewards = gymnasium.wrappers.NormalizeReward(Example(length)), []
    while len(rewards) < 6:
        environment.reset()
        is_over = False
        while not is_over:
            _, reward, is_over, _, _ = environment.step(0)
            rewards.append(round(float(reward), 2))
    return rewards


long, short = normalize(3), normalize(1)
print(f"episodes of 3 steps   {long}\nepisodes of 1 step    {short}")
if not (70 < long[0] < 71 and max(long[1:]) < 3 and short == sorted(short) and short[-1] > 170):
    sys.exit("The behavior changed.")
END
