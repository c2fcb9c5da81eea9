"""All that is installed, below one name: `brokerhouse.broker`, `brokerhouse.storage` and so on.

The code is in the folders beside this one; here is a link to each of them. Python, Cython, mypy and
setuptools follow links, so a module has the same name here as in a wheel, where the folders are.

Log lines and text about the code leave `brokerhouse.` out: `broker.log.lane` is broker/log/lane.py.
"""
