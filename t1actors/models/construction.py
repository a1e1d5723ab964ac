"""One Hugging Face model is built at a time in a process.

Its constructors patch torch's initialisers and default device process-wide while they run; two at once leave tensors without
data. Actors of one process build their models in threads of their own, so they take turns here.
"""

import threading

constructing = threading.RLock()
