"""The places where a store's files lie: `protocol` says what the store needs of one, `local` is a directory of this
host.

Reading, writing, verify, repair and gc use a `Backend` and nothing else for what lies in the store. What is in flight
lies in the backend's `scratch`, a local directory for any backend: CRIU writes images there, and packs are made there.
`tests/contract/test_backend.py` is passed by every backend, and by the one in memory that tests have.
"""
