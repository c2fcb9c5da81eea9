{{ config(materialized='view') }}
SELECT topic, offset, value FROM brokerhouse.messages WHERE topic = 'kept'
