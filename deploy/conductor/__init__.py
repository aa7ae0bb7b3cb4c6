"""The run as a pure state machine: events in, commands out. It alone decides; engines only carry out.

engine ──event──► Conductor.handle ──commands──► engine

ActorStarted, FragmentMade, ActorLost   collection     ► Collect, SnapshotActor, StartActor
RankStarted, StateAdopted, GroupJoined  assembly       ► StartRank, AdoptState, JoinGroup, Publish
RankUpdated, RankLost                   learners       ► Update, HurryRank, StopRank; outcomes: made, voided, astray
    made                                commits        ► RecordUpdate
    astray                              conductor      ► RollBack, and an assembly from what the driver holds
LearnerSnapshot, ActorSnapshot          checkpointing  ► SnapshotLearner, WriteCheckpoint
EvaluationMade, CheckpointWritten       conductor      ► Evaluate, Finish

loop     consumes         produces          waits for                 unblocked by
handle   one event        commands          nothing: it is a function the engine's next event
"""
