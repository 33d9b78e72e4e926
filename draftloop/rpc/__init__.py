"""gRPC plumbing shared by all services; never imports torch."""
