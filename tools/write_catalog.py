"""Write src/forebay/sql/catalog.json: the objects that the migrations create.

Run this tool after each change of a migration.
"""

import asyncio
import json
from pathlib import Path

from forebay.doctor.examine import read_catalog
from forebay.embedded import temporary_server
from forebay.upgrade.migrate import migrate

TARGET = Path(__file__).parents[1] / "src" / "forebay" / "sql" / "catalog.json"


def main() -> None:
    """Migrate an empty server and write its catalog."""
    with temporary_server(extra_settings={"fsync": "off"}) as server:
        migrate(server.dsn())
        found = asyncio.run(read_catalog(server.dsn()))
    TARGET.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{TARGET}: {len(found)} objects")


if __name__ == "__main__":
    main()
