"""Connections of Kafka clients.

* listener.py: the ports; named_addresses.py: their addresses, as settings and clients write them.
* connection.py: one client: bytes to requests, responses back in order.
* sending.py: whose turn it is to make a large response, what is not sent yet, clients that do not
  read.
"""
