"""Where gradients of several ranks become one. The only room that may import torch.distributed.

process_group, agreement, joining    meet, agree on what everybody is, connect
buckets, conservation, digests       the gradient in parts: sent off during the backward pass, weighed, digested
ledger, pieces                       what is remembered of a step, and how it travels in the tail of the next one
verified, group                      one rank's side of a group: steps, and the close that ends in a shared verdict
verdict, disputes                    pure judgements: is it right, where is it wrong, who was wrong
faults                               faults on purpose, for drills and tests

loop       consumes                      produces                        waits for         unblocked by
a step     a backward pass               the sum over ranks, provisional the other ranks   them, or collective_s
the close  what all ranks saw            one verdict, the same on each   the other ranks   them, or collective_s
"""
