"""The core's own algorithms: four estimators, three losses, four groupings, four rejection modes."""
