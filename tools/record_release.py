"""Record a release in tests/migration/released.json.

Run this tool once for each release, and commit what it writes.

For the first release it also writes src/forebay/sql/migrations/0001_initial.sql, which was composed
from its sources until then.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from forebay.embedded import temporary_server
from forebay.sql import migrations
from forebay.sql.composer import SCHEMA
from forebay.upgrade.migrate import migrate
from tests.support.released import PATH, protocol, released


def main() -> None:
    """Migrate an empty server and record its migrations and protocol under the version of this
    library.
    """
    release = version("forebay")
    record = released()
    if release in record:
        sys.exit(f"{release} is already recorded; a released version never changes")
    with temporary_server(extra_settings={"fsync": "off"}) as server:
        migrate(server.dsn())
        record[release] = {
            "migrations": {
                f"{step.version:04}_{step.name}": step.checksum for step in migrations()
            },
            "protocol": protocol(server.dsn()),
        }
    first = migrations()[0]
    file = SCHEMA.parent / "migrations" / f"{first.version:04}_{first.name}.sql"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(first.text, encoding="utf-8")
        print(file)
    PATH.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{PATH}: {release}, {len(record[release]['protocol'])} functions")


if __name__ == "__main__":
    main()
