"""Where figures go: the console, the run folder, a picture."""
