"""A server that speaks the Tinker API on this machine: one base model, many LoRA models, real gradients."""
