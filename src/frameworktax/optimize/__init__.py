"""The best runtime for every shape of a model, delivered as a callable and proven.

A race over the runtimes that can be delivered: the heats measure all of them coarsely, the final
measures what is left, and the tunings of what is left, side by side with eager. What wins a shape
is exported, its outputs are compared with eager's over drawn inputs, and its gain is measured again
on the delivered artifact in fresh processes; what fails there is out, and the next one is tried.
"""
