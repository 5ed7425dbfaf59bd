#!/usr/bin/env bash
# TextArena's games use Python's global random generator. Games in one process change each other, and each reset with a
# seed also restarts the random numbers of the rest of the program.
#
# Version: TextArena 0.7.4.
#
# Expected: `reset(seed=...)` makes one game repeatable, as the generator of each environment in gymnasium does.
#
# Observed: `reset` seeds the module `random`. If a second game starts later, the first game gets other cards from the
# same seed and actions. A program that draws its next task with `random` after each reset with the same seed always
# draws the same number.
#
# Output:
#   alone:           4♠ 6♠ A♥ 3♣
#   with a neighbor: 4♠ 6♠ J♠
#   draws of the program after three resets: 0.91 0.91 0.91
#
# Why it matters: rollouts in threads or coroutines of one process are not repeatable, although each has a seed. A trainer
# that draws tasks with `random` repeats the same tasks. Give each game its own process, or replace the generator of its
# modules.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile textarena==0.7.4
cat > games.py <<'END'
import random

import textarena


def start(seed):
    game = textarena.make("Blackjack-v0")
    game.reset(num_players=1, seed=seed)
    return game


def hand(game):
    while hasattr(game, "env"):
        game = game.env
    return list(game.state.game_state["player_hand"])


def play(neighbors):
    game = start(1)
    for seed in neighbors:
        start(seed)
    game.step("[Hit]")
    first = hand(game)
    game.step("[Hit]")
    # After a hand above 21, the next hand of two cards begins.
    return hand(game) if len(hand(game)) > 2 else first


assert play([]) == play([])
print("alone:          ", *play([]))
print("with a neighbor:", *play([2]))
draws = []
for _ in range(3):
    start(7)
    draws.append(f"{random.random():.2f}")
print("draws of the program after three resets:", *draws)
END
venv/bin/python games.py 2> /dev/null | tee printed
grep -qF "alone:           4♠ 6♠ A♥ 3♣" printed && grep -qF "with a neighbor: 4♠ 6♠ J♠" printed &&
  test "$(tail -1 printed | cut -d: -f2 | tr ' ' '\n' | grep . | sort | uniq -c | awk '{print $1}')" = 3 ||
  { echo "The behavior changed."; exit 1; }
