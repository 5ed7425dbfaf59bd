"""The environments of Gymnasium, observed and acted in through text."""
