"""A server of OpenAI's chat-completions API as the model."""
