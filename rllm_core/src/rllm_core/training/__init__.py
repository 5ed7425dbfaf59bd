"""The training loop: `loop` makes the steps and says when validation runs, `schedule` which tasks are played when."""
