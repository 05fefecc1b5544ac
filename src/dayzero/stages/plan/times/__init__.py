"""How long: what a rank of a stage computes, moves and sends, and the seconds of a pass, for arrays of layouts.

stage -> work, traffic -> terms (classes of operators, calls, collectives) -> timing -> serving; roofline for devices
whose rates were measured; measured for times out of tables.
"""
