-- What people ask: the whole cluster, under the names that a single broker's tables and views have.
CREATE DATABASE IF NOT EXISTS brokerhouse;
