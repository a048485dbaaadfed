"""Write tests/sql/role_matrix.txt: the rights of each role on each object.

Review the grants in its diff.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from forebay.embedded import temporary_server
from forebay.upgrade.migrate import migrate
from tests.sql.test_role_matrix import MATRIX, rights, written


def main() -> None:
    """Migrate an empty server and try every right."""
    with temporary_server(extra_settings={"fsync": "off"}) as server:
        migrate(server.dsn())
        lines = written(rights(server.dsn()))
    MATRIX.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{MATRIX}: {len(lines)} objects")


if __name__ == "__main__":
    main()
