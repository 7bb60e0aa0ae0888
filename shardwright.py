"""shardwright: plan and run the distributed training of any torch module."""
