"""The asynchronous client. tools/async_to_sync.py generates ``_sync`` from this folder."""
