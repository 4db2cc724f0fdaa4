"""The store."""

from crckpt.store.ingest import NewCheckpoint, ingest
from crckpt.store.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.materialise import details_of, file_names, materialise, read_file
from crckpt.store.names import check_name
from crckpt.store.refs import Tag
from crckpt.store.repository import Repository
from crckpt.store.retention import Collected, Unreadable
from crckpt.store.transaction import Transaction
from crckpt.store.verify import Damage, Verified, verify

__all__ = [
    "Checkpoint",
    "Collected",
    "Damage",
    "IndexPlace",
    "NewCheckpoint",
    "PackUse",
    "Repository",
    "Tag",
    "Transaction",
    "Unreadable",
    "Verified",
    "check_name",
    "details_of",
    "file_names",
    "ingest",
    "materialise",
    "read_file",
    "verify",
]
