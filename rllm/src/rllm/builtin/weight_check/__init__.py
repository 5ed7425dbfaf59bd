"""Feature `weight_check`: checks after weight syncs that each sampler has the trained weights."""
