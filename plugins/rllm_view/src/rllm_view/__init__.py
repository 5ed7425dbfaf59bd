"""Looking into runs: in the browser and in the terminal."""
