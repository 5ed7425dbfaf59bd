"""Write metrics to the console and to the chosen trackers."""
