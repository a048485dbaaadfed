"""The same order in Forebay, absurd and DBOS: what each does when its worker is killed, and when
the code changes in between.

``python -m forebay_bench.orders`` runs it. The order is charged and booked, waits for its approval,
gets a label for each article, and is mailed.
"""
