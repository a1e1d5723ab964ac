"""The command harness: any program drives a trial, over HTTP."""
