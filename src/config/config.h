// The resolved configuration: one struct a section. The schema table (schema.cpp) is the single place that says for each key its
// type, default, allowed values and documentation; this file only holds the values. Top-level keys are final.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scalewright {

struct ModelSection {
  std::string path;           // Hugging Face folder (or cache folder with snapshots/)
  std::string checkpoint;     // a converted copy of it, made when missing; empty: none
  std::string dtype = "auto"; // compute dtype: float64, float32, bfloat16, auto (bfloat16 where the CPU has it, else float32)
};

struct DataSection {
  std::vector<std::string> train;         // JSON lines, text files, or a folder of prepared token shards; empty: random tokens
  std::vector<std::string> validation;    // same kinds; empty: a holdout of `validation_fraction` of train
  std::string format = "auto";            // auto, sharegpt (both shapes), hy_v3, text
  int64_t seq_len = 2048;                 // tokens of a row; longer samples are truncated (and counted)
  std::string loss_on = "assistant";      // assistant (turns with their stop token), all
  bool packing = false;                   // several documents a row, attention restarts at each
  double validation_fraction = 0.01;
  int64_t validation_rows = 64;           // at most so many rows, the same every time
  int64_t max_samples = 0;                // 0: all
  int64_t workers = 0;                    // text worker processes; 0: one a core
};

struct QuantizeSection {
  std::string format = "nvfp4";           // nvfp4, nvfp4a16, w4a16, w8a8, fp8, w4afp8
  std::string numerics = "deploy";        // deploy, mcore_qad
  bool experts_only = false;              // only routed experts
  std::vector<std::string> skip;          // globs over module names (model.layers.0.self_attn.q_proj); a fused group is skipped whole
  std::string algorithm = "max";          // calibration algorithm
  std::string calibration;                // JSON lines, token shards or safetensors with input_ids; empty: the training data
  int64_t calibration_rows = 64;
  std::string w4afp8_rounding = "none";   // none, vllm (that engine's E4M3 re-rounding of group scales)
  std::string init_scales;                // a run, checkpoint or scales file of ours to start from
};

struct LossSection {
  double lm_weight = 0.0;
  double distill_weight = 1.0;
  std::string type = "fkl";               // fkl (kl), rkl, cakld, jsd
  double temperature = 1.0;
  int64_t top_k = 0;                      // 0: the whole vocabulary
  bool tail = true;                       // with top_k: one more outcome holds the rest of the mass; false: renormalised support
  double jsd_beta = 0.5;
  int64_t chunk = 256;                    // tokens whose logits exist at a time
};

struct TrainSection {
  std::string what = "scales";            // scales (weights, both: later)
  bool act_scales = false;                // also learn activation globals (deploy numerics; mcore_qad always does for experts)
  LossSection loss;
  int64_t steps = 128;
  int64_t micro_batch = 8;                // rows a forward pass
  int64_t global_batch = 0;               // rows an optimizer step; 0: micro_batch times the data-parallel size
  double lr = 2e-4;
  double min_lr = 0.0;
  std::string schedule = "constant";      // constant, linear, cosine, wsd
  int64_t warmup = 0;                     // steps
  double decay_fraction = 0.2;            // wsd: share of the steps at the end that decays
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.0;
  double clip = 1.0;                      // global gradient norm; 0: no clipping
  int64_t max_skipped = 10;               // consecutive non-finite steps before giving up (exit 5)
  bool recompute = false;                 // activations of a layer are computed again in backward
  int64_t recompute_layers = 0;           // of the first so many layers of each stage; 0: all
  int64_t save_every = 0;                 // steps; 0: only at the end
  int64_t keep_last = 2;
  int64_t keep_every = 0;
  int64_t validate_every = 0;             // steps; 0: only at the end
  int64_t log_every = 10;
  int64_t seed = 1234;
  std::string resume = "auto";            // auto, never, or a step number
};

struct ParallelSection {
  int64_t tp = 1, ep = 1, cp = 1, pp = 1;
  int64_t dp = 0;                         // 0: what is left of the world
  bool sp = false, shard_dense = false;
  std::string deterministic = "run";      // run (reruns are bitwise equal), layout (layouts are too)
  int64_t first_stage_layers = 0, last_stage_layers = 0;   // of the pipeline; 0: even
};

struct EvaluateSection {
  std::string tasks;                      // folder of task files
  int64_t limit = 0;                      // questions a task; 0: all
  int64_t batch = 64;                     // sequences generated together
  int64_t max_new_tokens = 64;
  int64_t every = 0;                      // steps between evaluated checkpoints in recover; 0: four, evenly spread
  bool divergence = true;                 // also divergence to the BF16 model over the tasks' answer tokens
};

struct PolicySection {
  double min_gap = 0.0;                   // recover stops before training when the relative PTQ gap is below this
};

struct SearchSection {};

struct ExportSection {
  std::string to = "compressed-tensors";
  std::string shard_size = "5GB";
};

struct SlurmSection {};

struct OutputSection {
  std::string path;                       // the run directory
  std::string style = "scalewright";      // scalewright, angelslim (also scales_rank*.safetensors and angelslim_config.json)
};

struct Config {
  ModelSection model;
  DataSection data;
  QuantizeSection quantize;
  TrainSection train;
  ParallelSection parallel;
  EvaluateSection evaluate;
  PolicySection policy;
  SearchSection search;
  ExportSection export_;
  SlurmSection slurm;
  OutputSection output;
  std::string dialect = "scalewright";    // or mcore_qad: what the file was written in
  std::vector<std::string> notes;         // what a translation of a foreign file did, to be logged once
};

/// Reads, checks and resolves a YAML file; a MCoreQAD file (a top-level `compression` key) is translated first. `overrides` are
/// "key.path=value" (our keys), applied last. Relative paths in the file are relative to the working directory. All errors of the
/// file are collected and thrown as one UserError: each with file:line:column, the value, what is allowed and the nearest key.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);

/// Defaults plus overrides, for commands without a file.
Config default_config(const std::vector<std::string>& overrides);

/// The cross-field rules (also called by load_config). Throws UserError with all violations.
void check_config(const Config& config);

/// The whole configuration as YAML, every key with its value, in schema order; reading it back gives the same Config.
std::string dump_config(const Config& config);

/// JSON schema (draft 2020-12) of a configuration file, for editors; and the reference page docs/config.md.
std::string config_json_schema();
std::string config_reference_markdown();

}  // namespace scalewright
