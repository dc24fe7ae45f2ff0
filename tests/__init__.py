"""The test suite; a package so that `from tests.tiny import ...` works wherever pytest is started."""
