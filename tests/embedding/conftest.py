from tests.sandbox.conftest import docker, live, namespaces

__all__ = ["docker", "live", "namespaces"]
