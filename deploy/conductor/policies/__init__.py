"""Who collects what by which weights, and which fragments make an update: the only three answers.

    synchronous    every actor makes one fragment for every update, by the weights `policy_lag` updates before it
    asynchronous   every actor always has work in flight; an update takes what has arrived, in the order of arrival
    scripted       the fragments and updates of a ledger, once more

All are pure and have no clock. Everything else that the conductor does is alike for all of them.
"""
