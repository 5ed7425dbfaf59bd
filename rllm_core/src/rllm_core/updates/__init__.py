"""Policy losses in torch, what they clip, and how token losses become one number."""
