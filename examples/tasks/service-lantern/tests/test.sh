#!/bin/bash
# Every case of test_state.py is one assertion.
exec pytest -q -rA /tests/test_state.py
