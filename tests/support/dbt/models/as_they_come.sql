{{ config(materialized='materialized_view', order_by='offset', engine='MergeTree()') }}
SELECT offset, value FROM brokerhouse.messages WHERE topic = 'kept'
