"""Files of other projects as episodes, and episodes as their files. Each format is one module."""
