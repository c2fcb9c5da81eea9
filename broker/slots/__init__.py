"""What belongs to slots, on any broker: consumer groups and transactions.

A single broker serves all slots; a broker of a cluster serves those that its session owns
(coordinator/slots.py).
"""
