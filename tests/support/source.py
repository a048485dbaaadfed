"""A source of mirrors that can be scanned."""

from forebay.mirror import Document


class Items:
    """A source in memory."""

    def __init__(self, versions):
        self.versions = dict(versions)

    def read(self, ids):
        return [Document(name, self.versions[name], {}) for name in ids if name in self.versions]

    def scan(self, after, limit):
        names = sorted(name for name in self.versions if after is None or name > after)
        return [(name, self.versions[name]) for name in names[:limit]]
