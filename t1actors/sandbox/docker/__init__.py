"""Sandboxes in Docker containers, behind the same protocol as those of namespaces.

``backend`` is what callers use; ``reconcile`` asks the daemon, through aiodocker, what is there and removes what nobody owns.
The rest runs beside the containers, in the fork server and its shims, with the standard library only: ``machine`` makes one
container, ``attendant`` starts and kills shells inside it, ``limits`` counts and watches, ``daemon`` speaks to the socket.
"""
