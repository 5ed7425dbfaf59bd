"""Policy losses in torch, their clipped tokens, and the aggregation of token losses."""
