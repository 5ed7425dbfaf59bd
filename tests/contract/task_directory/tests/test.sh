test -s answer.txt && echo 1 > "$SANDBOX_ROOT/logs/verifier/reward.txt"
