"""Plan staleness: is the remaining plan still good in the state that the world is in now (SyncPlan 4.3, A.6)?"""
