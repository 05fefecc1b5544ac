"""Values that every config had until version 5 of the library where it did not state others, by name."""

from __future__ import annotations

max_length = 20
min_length = 0
do_sample = False
num_beams = 1
temperature = 1.0
top_k = 50
top_p = 1.0
repetition_penalty = 1.0
num_return_sequences = 1
return_dict_in_generate = False
output_scores = False
pruned_heads: dict[int, list[int]] = {}
use_bfloat16 = False
cross_attention_hidden_size = None
tie_encoder_decoder = False
finetuning_task = None
task_specific_params = None
tokenizer_class = None
prefix = None
sep_token_id = None
decoder_start_token_id = None
