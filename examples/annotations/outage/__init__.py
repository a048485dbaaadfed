"""An outage to watch: scripts/demo --outage

The service is under load while its broker and its index become black holes: they accept connections
and never answer. Beside it runs a service with the old order, which commits and then publishes to
the broker.
"""
