"""Straight to the address: the option of a channel, for who imports nothing that takes time."""

# gRPC would send all it has to the proxy that `http_proxy` or `https_proxy` names, for loopback and
# between roles too: those are for the web.
DIRECT = ("grpc.enable_http_proxy", 0)
