"""Action chains with explicit waits: terms, language, execution (SyncPlan A.4, A.5)."""
