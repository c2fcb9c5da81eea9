-- What this server holds of the cluster: the tables and views of sql/schema/, for the brokers.
CREATE DATABASE IF NOT EXISTS brokerhouse_shard;
