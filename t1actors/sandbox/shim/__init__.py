"""What runs beside the sandboxes: a fork server, one shim per sandbox outside it, one init inside it.

Everything here uses the standard library only and is imported once, by the fork server, before anything is forked.
"""
