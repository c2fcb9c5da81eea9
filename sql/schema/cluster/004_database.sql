-- What people query: the whole cluster, under the names of a single broker's tables and views.
CREATE DATABASE IF NOT EXISTS brokerhouse;
