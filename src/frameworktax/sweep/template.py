"""The study that ``frameworktax init`` writes: what most people want, the rest as comments."""

from __future__ import annotations

TEMPLATE = """\
# A study for `frameworktax sweep`. Run it again at any time: what the store holds is not measured
# again. See what it comes to: frameworktax sweep THIS_FILE --dry-run

[study]
name = "runtimes for my model"
time_budget = "10min"       # wall time for everything; without it, until every point is told
# point_budget = 100        # points at most: higher priority first, small batches first
# processes = 3             # fresh processes a point; fewer than 3 leave their spread out
# until = "3%"              # half-width of the 95 % interval at which a point is done
# twin = "auto"             # width-shrunk twins: auto, all or none
# stop_when_linear = true   # leave out larger batches once latency grows as fast as the batch
# attempts = 2              # sessions in which a point that fails is tried
# together = [["bert-tiny", "distilbert"]]   # models to compare: measured side by side

# Every combination of these axes. Names: frameworktax list models, frameworktax list runtimes.
[grid]
models = ["bert-tiny"]      # or "my_code.py:build", which needs --allow-code
runtimes = ["eager", "torchscript-frozen", "onnxruntime"]   # or "all"
batch = "1..16"             # the powers of two; or [1, 2, 3]
length = [32]               # tokens a sample; models without a length leave it out
# image_size = [224]        # pixels a side; models of images only
# width = [0.5, 1]          # factors on layer widths
# depth = [0.5, 1]          # factors on the number of layers
# precision = ["float32"]   # float32, float16, bfloat16
# threads = [1]             # of the calling process on a CPU
# platform = ["local"]      # local, cpu, cuda:N
# input = ["dense", "ragged"]                # ragged: sentences of drawn lengths, padded
# phase = ["forward", "generate"]
# new_tokens = [16]         # generate only
# kv_cache = ["dynamic"]    # none, dynamic, static; generate only
# channels_last = [false, true]

# Further points, each a small grid of its own.
# [[point]]
# models = ["resnet-18"]
# runtimes = ["eager"]
# batch = [1, 8]

# Points that match every line are left out.
# [[exclude]]
# runtimes = ["onnxruntime"]
# batch = [16]

# Points that match get other values.
# [[override]]
# models = ["bert-tiny"]
# set = { length = [128, 512] }

# Higher is measured earlier; 0 is the default.
# [[priority]]
# runtimes = ["eager"]
# value = 10
"""
