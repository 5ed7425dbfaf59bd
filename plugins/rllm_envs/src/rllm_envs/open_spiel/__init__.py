"""The games of OpenSpiel, whose seats the policy, bots and random moves play."""
