"""Going on when a rank dies, hangs or computes nonsense.

    messages     what the controller and its members tell each other
    channel      how: one socket for each member
    requests     what was asked and what it has led to
    crew         members as processes
    controller   outside of the ranks: starts members, watches them, puts spares in the places of the lost
    service      a controller with a thread of its own, for requests from any thread at any time
    watch        which member is at fault, from their beats
    places       who takes which place, with spares or with fewer ranks
    job          what members are told when they start
    member       one process: joins an epoch, serves, leaves it when a peer is gone, and waits for the next
    roles        what its parts know of each other
    serving      what it serves with: the reference runtime
    rounds       in which all ranks take the same orders at the same step

An epoch is one set of members in the places of one layout. A member that is lost ends it: the others keep their
weights, leave their process groups and join those of the next epoch. Requests, and the tokens that they have led to so
far, are the controller's: nothing that was submitted depends on a rank.
"""
