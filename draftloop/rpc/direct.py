"""The channel option that bypasses HTTP proxies, in a module that imports nothing."""

# By default, gRPC sends everything, even over loopback and between roles, through the proxy that
# `http_proxy` or `https_proxy` names. Those are meant for the web.
DIRECT = ("grpc.enable_http_proxy", 0)
