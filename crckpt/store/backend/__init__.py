"""The place where a store's files lie: a directory of this host.

Reading, writing, verify, repair and gc use a `Backend` and nothing else for what lies in the store. What is in flight
lies in its `scratch`: CRIU writes images there, and packs are made there.

Names are relative and have slashes, as `packs/ab/DIGEST.pack`. A name stands for a file; what names begin with is a
directory, which exists as long as a file lies in it, or longer. Files are put whole and never changed, so a reader
finds a file's old content or its new one, and no part of either. `what` names the steps: see `host.steps`.

What holds for every method: it raises FileNotFoundError for a name that is not there, IntegrityError for what cannot be
a store's file (a link, another user's), OSError for what the place refuses. `tests/contract/test_backend.py` is passed
by `Backend`, and by the one in memory that tests have.
"""
