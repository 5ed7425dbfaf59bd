"""What backends share: the parts of an update in torch, and the renderer of a run."""
