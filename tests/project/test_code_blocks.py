"""The runner of code blocks notices when a page is wrong."""

import os
import re

import pytest

from tools.code_blocks import Session, read_blocks


@pytest.fixture
def run(tmp_path, empty_database):
    """Run a page given as text; return its namespace."""

    def run(text: str) -> dict:
        page = tmp_path / "page.md"
        page.write_text(text)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
        session = Session(empty_database, tmp_path, environment)
        for block in read_blocks(page):
            session.run(block)
        return session.namespace

    return run


def test_blocks_share_what_they_define(run):
    """
    Names, tables and files made by one block are there for the next, hidden ones included.
    """
    namespace = run(
        """
<!-- hidden sql
create table users (id int);
-->

```sql
insert into users values (1); insert into users values (2);
```

<!-- file: shop.py -->
```python
price = 3
```

Not run is what has no language:

```
price = nothing
```

- a list may hold a block:

  ```python
  if price:
      twice = 2 * price
  ```

```bash
python3 -c 'import shop; print(shop.price)' > told
```
"""
    )
    assert namespace["twice"] == 6


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ('```python\nassert 1 == 2, "odd"\n```\n', "odd"),
        ("```sql\nselect nothing_there;\n```\n", "nothing_there"),
        ("```bash\necho so; false\n```\n", "page.md:2: `echo so; false\n` exits with 1: so"),
        ("```console\n$ echo one two\none three\n```\n", "does not print 'one three'"),
        ("<!-- fails: ouch -->\n```bash\ntrue\n```\n", "page.md:3 was said to fail and did not"),
        ("<!-- fails: ouch -->\n```bash\nfalse\n```\n", "page.md:3 fails otherwise"),
        ("<!-- runs until: x -->\n```bash\ntrue\n```\n", "ended by itself"),
    ],
)
def test_a_wrong_page_is_reported_by_line(run, page, complaint):
    """
    What does not run, or runs otherwise than the page says, is an error that names the place.
    """
    with pytest.raises(Exception, match=re.escape(complaint)):
        run(page)


def test_what_the_page_says_is_accepted(run):
    """
    Output may be shortened with dots, commands may go on until a word is seen, and blocks may be
    left out or expected to fail.
    """
    run(
        """
```console
$ printf 'id    state\\n1     done\\n'
id state
... done
$ echo \\
  two
two
```
<!-- not run: it would take a year -->
```bash
sleep 31536000
```
<!-- fails: no such thing -->
```python
raise ValueError("there is no such thing")
```
<!-- runs until: listening -->
```console
$ echo listening; sleep 60
```
"""
    )
