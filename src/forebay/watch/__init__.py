"""What is wrong, and why: metrics, alerts, the screen of ``forebay top``, and where a job is.

``operations``, ``where`` and ``explain`` read facts; ``rules``, ``top``, ``explanation`` and
``next_step`` decide what they mean, without a clock; ``metrics`` publishes them. ``mirror_rules``
are the rules of mirrors, with the texts that both have.
"""
