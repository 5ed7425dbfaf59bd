"""The journal of a run: finished model calls of rounds that no checkpoint holds. A resumed run answers from them."""
