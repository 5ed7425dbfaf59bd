"""Preferences: pairs of a better and a worse completion as data, and the losses DPO, IPO and KTO (`rllm prefer`)."""
