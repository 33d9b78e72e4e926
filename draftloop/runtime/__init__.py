"""The model runtime: loading, cache, tree attention, sampling, acceptance, engine. No gRPC."""
