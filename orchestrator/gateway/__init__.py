"""The HTTP door: OpenAI's API over the same front and loop that serve gRPC."""
