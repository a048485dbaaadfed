"""An outage to watch: scripts/demo --outage

The service is under load while its broker and its index turn into a black hole: they accept connections and never answer.
Beside it runs a service in the old order, which commits and then publishes to the broker.
"""
