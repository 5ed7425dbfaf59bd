"""Files of other programs as episodes, and episodes as their files. Each module of `programs` is a format."""
