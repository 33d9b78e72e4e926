"""The HTTP gateway: OpenAI's and Anthropic's APIs, over the front and loop that serve gRPC."""
