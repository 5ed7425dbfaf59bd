"""Where figures go: the console, and whatever trackers are chosen."""
