-- What this server holds of the cluster: the tables and views of sql/, as the brokers use them.
CREATE DATABASE IF NOT EXISTS brokerhouse_shard;
