"""The observer `budget`, which stops a run at its budget of hours, tokens or cost."""
