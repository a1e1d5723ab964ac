from tests.sandbox.conftest import live

__all__ = ["live"]
