"""What the core itself offers: four estimators, three losses, one grouping, three rejection modes."""
