"""The run as a pure state machine: events in, commands out. It alone decides; engines only carry out.

engine ──event──► Conductor.handle ──commands──► engine

FragmentMade ┐                        ┌ Collect(actor, update, weights)
UpdateMade   ├─► accounts, frames,    ├ Update(frames in actor order)
ActorLost    │   cuts, seats ────────►├ SnapshotActor, SnapshotLearner, WriteCheckpoint
StopAsked ...┘                        └ StartActor, Evaluate, Note, Finish

loop     consumes         produces          waits for                 unblocked by
handle   one event        commands          nothing: it is a function the engine's next event
"""
