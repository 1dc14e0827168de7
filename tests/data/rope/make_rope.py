"""Makes rope.json: inverse frequencies and attention scaling as transformers 5.24 computes them, but in float64.

Usage: python make_rope.py OUT.json
Each case is a config.json as the hub has it (unneeded keys left out), the inverse frequencies and the factor on cos and sin.
"""
import importlib, json, re, sys

import torch
import transformers

for name in ("modeling_rope_utils", "models.qwen3_moe.modeling_qwen3_moe", "models.hy_v3.modeling_hy_v3", "models.qwen3.modeling_qwen3",
             "models.qwen2.modeling_qwen2", "models.llama.modeling_llama"):  # float64 where transformers hard-codes float32
    module = importlib.import_module("transformers." + name)
    source = re.sub(r"torch\.float(32)?\b(?!\w)", "torch.float64", open(module.__file__).read()).replace(".float()", ".double()")
    exec(compile(source, module.__file__, "exec"), module.__dict__)
ROTARY = {"qwen3_moe": ("qwen3_moe.modeling_qwen3_moe", "Qwen3MoeRotaryEmbedding"), "hy_v3": ("hy_v3.modeling_hy_v3", "HYV3RotaryEmbedding"),
          "qwen3": ("qwen3.modeling_qwen3", "Qwen3RotaryEmbedding"), "qwen2": ("qwen2.modeling_qwen2", "Qwen2RotaryEmbedding"),
          "llama": ("llama.modeling_llama", "LlamaRotaryEmbedding")}
SIZES = dict(vocab_size=64, hidden_size=512, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2, intermediate_size=64)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = {
    "default_hub": dict(model_type="qwen3", head_dim=128, rope_theta=1000000.0, max_position_embeddings=40960, rope_scaling=None),
    "default_parameters": dict(model_type="qwen3_moe", head_dim=64, max_position_embeddings=4096, **MOE,
                               rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "default_no_head_dim": dict(model_type="qwen2", rope_theta=1000000.0, max_position_embeddings=32768),
    "default_theta_of_hy_v3": dict(model_type="hy_v3", head_dim=128, max_position_embeddings=131072, **MOE),
    "linear": dict(model_type="llama", rope_theta=10000.0, max_position_embeddings=4096, rope_scaling={"type": "linear", "factor": 2.5}),
    "llama3_hub": dict(model_type="llama", head_dim=128, rope_theta=500000.0, max_position_embeddings=131072,
                       rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 8192}),
    "llama3_parameters": dict(model_type="llama", head_dim=32, max_position_embeddings=512,
                              rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                                               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "yarn": dict(model_type="qwen3", head_dim=128, rope_theta=1000000.0, max_position_embeddings=131072, rope_scaling=YARN),
    "yarn_original_absent": dict(model_type="qwen3", head_dim=128, rope_theta=1000000.0, max_position_embeddings=2048,
                                 rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "yarn_attention_factor": dict(model_type="qwen3_moe", head_dim=128, max_position_embeddings=131072, **MOE,
                                  rope_parameters=YARN | {"rope_theta": 1000000.0, "attention_factor": 1.25, "beta_fast": 24.0, "beta_slow": 2.0}),
    "yarn_mscale": dict(model_type="llama", head_dim=64, rope_theta=10000.0, max_position_embeddings=163840,
                        rope_scaling=YARN | {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.8}),
    "yarn_not_truncated": dict(model_type="llama", head_dim=64, rope_theta=150000.0, max_position_embeddings=131072,
                               rope_scaling=YARN | {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}),
    "yarn_short": dict(model_type="qwen2", rope_theta=10000.0, max_position_embeddings=64,
                       rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}),
}

out = {}
for case, keys in CASES.items():
    raw = SIZES | keys
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(raw)))
    module, rotary = ROTARY[keys["model_type"]]
    rope = getattr(importlib.import_module("transformers.models." + module), rotary)(config)
    assert rope.inv_freq.dtype == torch.float64, case
    out[case] = {"config": raw, "inverse": rope.inv_freq.tolist(), "attention_scaling": float(rope.attention_scaling)}
with open(sys.argv[1], "w") as f:
    f.write("{\n" + ",\n".join(f" {json.dumps(c)}: {json.dumps(v)}" for c, v in out.items()) + "\n}\n")
