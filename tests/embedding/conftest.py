from tests.sandbox.conftest import host_makes_sandboxes, live

__all__ = ["host_makes_sandboxes", "live"]
