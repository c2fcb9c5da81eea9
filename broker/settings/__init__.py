"""Settings of the broker, and configs as Kafka's tools see and change them.

* config.py: the settings; config_sources.py: flags, environment, file; dynamic_settings.py: those
  that change while the broker runs.
* effective_configs.py: the configs that apply to a topic; resource_configs.py: those of groups and
  client metrics; kafka_configs.py: Kafka's broker configs, from kafka_configs.tsv.
* admin_store.py: what administrators set beside topics: configs (stored_configs.py) and quotas
  (client_quotas.py).
"""
