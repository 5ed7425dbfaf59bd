"""ECHO: the stage `echo` also trains the model to predict the observations of its environment."""
