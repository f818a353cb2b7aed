"""A broker's work in ZooKeeper.

broker_metadata   the ids of broker and cluster; meta.properties       admin_manager     admin requests
isr_store         ISR changes before AlterPartition, log dir failures  feature_listener  finalized features
config_changes    configuration changes at run time
"""
