"""Training the coordinator: reward, data by event-driven augmentation, SFT and GRPO (SyncPlan A.2, A.7, A.8)."""
