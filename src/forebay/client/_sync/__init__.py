# Generated from src/forebay/client/_async/__init__.py by tools/async_to_sync.py. Do not edit.
"""The synchronous client."""
