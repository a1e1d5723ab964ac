"""What runs inside the grader's sandbox, beside the tests: it is put there read-only, as part of the tool layer.

Standard library and pytest only, for Python 3.10 and later: nothing else of t1actors is there.
"""
