#include "config/mcore_qad_dialect.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "base/near.h"
#include "config/scalar.h"

namespace scalewright {
namespace {

const std::string kBackend = "compression.MCoreQAD.";

/// MCoreQAD's defaults (its TrainConfig and OptimConfig), where they are not ours.
Config peer_defaults() {
  Config config;
  config.dialect = "mcore_qad";
  config.quantize.numerics = "mcore_qad";
  config.output.style = "angelslim";
  config.output.path = "./output";
  config.data.seq_len = 256;
  config.data.loss_on = "all";
  config.data.packing = false;
  config.train.loss.lm_weight = 1.0;
  config.train.loss.distill_weight = 0.0;
  config.train.loss.tail = false;
  config.train.micro_batch = 1;
  config.train.steps = 100;
  config.train.recompute = true;
  config.train.lr = 2e-4;
  config.train.beta1 = 0.9;
  config.train.beta2 = 0.95;
  config.train.weight_decay = 0.0;
  config.train.clip = 1.0;
  return config;
}

/// The maps that the dialect has, by path.
bool is_map_path(const std::string& path) {
  const auto& keys = mcore_qad_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const McoreQadKey& key) { return key.path.starts_with(path + "."); });
}

std::optional<std::string> suggestion_for(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& key : mcore_qad_keys()) {
    names.push_back(key.path);
    for (auto dot = key.path.find('.'); dot != std::string::npos; dot = key.path.find('.', dot + 1))
      names.push_back(key.path.substr(0, dot));
  }
  const auto leaf = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  std::vector<std::string> leaves;
  const auto parent = path.substr(0, path.rfind('.') + 1);
  for (const auto& name : names)
    if (name.substr(0, name.rfind('.') + 1) == parent) leaves.push_back(leaf(name));
  if (const auto near = nearest(leaf(path), leaves)) return parent + *near;
  if (const auto near = nearest(path, names)) return near;
  for (const auto& name : names)
    if (leaf(name) == leaf(path)) return name;
  return std::nullopt;
}

class Translation {
 public:
  Translation(const std::string& file, Reading& reading) : file_(file), reading_(reading) {}

  void run(const YamlNode& root) {
    reading_.config = peer_defaults();
    take_map("", root);
    check_name(root);
    check_required();
    loss_mask();
    tell_differences();
  }

 private:
  void take_map(const std::string& prefix, const YamlNode& node) {
    if (node.is_null()) return;
    if (node.kind != YamlNode::Kind::kMap) {
      reading_.problems.add(node.place, fmt::format("{}: {} is not a map of keys", prefix, node.shown()));
      return;
    }
    for (const auto& entry : node.entries) {
      const std::string path = prefix.empty() ? entry.key : prefix + "." + entry.key;
      if (is_map_path(path)) {
        take_map(path, entry.value);
      } else {
        take_key(path, entry);
      }
    }
  }

  void take_key(const std::string& path, const YamlNode::Entry& entry) {
    const auto& keys = mcore_qad_keys();
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const McoreQadKey& key) { return key.path == path; });
    if (found == keys.end()) {
      const auto suggestion = suggestion_for(path);
      reading_.problems.add(entry.place, fmt::format("unknown key '{}'", path) +
                                             (suggestion ? fmt::format(" (did you mean '{}'?)", *suggestion) : ""));
      return;
    }
    given_[path] = entry.value;
    if (path == "compression.name" || path == "model.name") return;
    if (found->ours.empty()) {
      unused_.push_back(path);
      return;
    }
    if (entry.value.is_null()) return;  // None in the peer: its default
    if (path == kBackend + "init_scales_path" && is_pickle(entry.value)) return;
    reading_.take(found->ours, entry.value, path);
  }

  /// A pickle runs code when it is read, and its tensors have no layout-free names.
  bool is_pickle(const YamlNode& node) {
    const std::string suffix = std::filesystem::path(node.text).extension().string();
    static const std::array<std::string_view, 5> kPickles = {".pt", ".pth", ".pkl", ".pickle", ".bin"};
    if (std::find(kPickles.begin(), kPickles.end(), suffix) == kPickles.end()) return false;
    reading_.problems.add(node.place,
                          fmt::format("{}init_scales_path: '{}' is a pickle, which can run any code when it is read; "
                                      "scales are read from safetensors only"
                                      " (a run directory, checkpoint or scales_rank*.safetensors of scalewright)\n"
                                      "hint: train with scalewright to get such a file, or leave init_scales_path away "
                                      "to start from min-max scales",
                                      kBackend, node.text));
    return true;
  }

  /// compression.name: MCoreQAD, or a list of just that.
  void check_name(const YamlNode& root) {
    const auto found = given_.find("compression.name");
    if (found == given_.end()) {
      reading_.problems.add(root.find("compression")->place, "compression.name is missing (allowed: MCoreQAD)");
      return;
    }
    const YamlNode& node = found->second;
    const YamlNode& name = node.items.size() == 1 ? node.items[0] : node;
    if (name.kind == YamlNode::Kind::kScalar && name.text == "MCoreQAD") return;
    reading_.problems.add(
        node.place,
        fmt::format("compression.name: {} is not supported (allowed: MCoreQAD)\n"
                    "hint: write a configuration of scalewright instead, see `scalewright config reference`",
                    node.shown()));
  }

  void check_required() {
    if (!given_.count("model.model_path"))
      reading_.problems.add({file_}, "model.model_path is missing (a Hugging Face folder)");
  }

  /// The peer masks only padding, except for hy_v3, whose samples are counted on assistant spans.
  void loss_mask() {
    if (is_hy_v3()) reading_.config.data.loss_on = "assistant";
  }

  /// By the model's own config.json where it is there, as the peer does; else by the name.
  bool is_hy_v3() const {
    const auto file = std::filesystem::path(reading_.config.model.path) / "config.json";
    std::error_code error;
    if (!reading_.config.model.path.empty() && std::filesystem::is_regular_file(file, error)) {
      try {
        const Json json = read_json(file);
        if (json.is_object() && json.contains("model_type")) return json["model_type"] == "hy_v3";
      } catch (const Error&) {
        // The model module tells what is wrong with the file.
      }
    }
    const auto found = given_.find("model.name");
    if (found == given_.end()) return false;
    std::string name;
    for (const char c : found->second.text)
      if (std::isalnum(static_cast<unsigned char>(c)))
        name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    static const std::array<const char*, 4> kNames = {"hyv3", "hy3", "hunyuanv3", "hunyuan3"};
    return std::any_of(kNames.begin(), kNames.end(), [&](const char* known) { return name.starts_with(known); });
  }

  void note(const std::string& text) { reading_.config.notes.push_back(text); }

  void tell_differences() {
    note(
        "an AngelSlim MCoreQAD file: numerics mcore_qad (its eager rules, in dense and expert layers alike), its "
        "defaults for keys that are not given");
    note("losses and gradients are divided by the global number of counted tokens; MCoreQAD averages each rank's mean");
    if (!unused_.empty()) note(fmt::format("without effect here: {}", fmt::join(unused_, ", ")));
    if (given_.count(kBackend + "checkpoint_path"))
      note("the checkpoint is our own (scalewright convert), made from model.model_path when it is missing; without checkpoint_path weights come straight from there");
    note(reading_.config.data.loss_on == "all"
             ? "the loss counts all tokens but padding, as MCoreQAD does; -o data.loss_on=assistant is usually better"
             : "the loss counts assistant spans with their stop token, as MCoreQAD does for hy_v3");
    note("small data is visited again and again in a new order each time; MCoreQAD repeats it in one order");
    note("scales are written as safetensors (scales_rank*.safetensors), not as pickles");
    relaxed_rules();
  }

  /// What MCoreQAD refuses and we do not.
  void relaxed_rules() {
    const auto& parallel = reading_.config.parallel;
    const int64_t seq_len = reading_.config.data.seq_len;
    if (parallel.pp > 1) note("pipeline_parallel above 1, which MCoreQAD refuses, is allowed");
    if (parallel.tp > 1 && !parallel.sp)
      note("tensor_parallel without sequence_parallel, which MCoreQAD refuses, is allowed");
    if (parallel.tp == 1 && parallel.sp)
      note("sequence_parallel with tensor_parallel 1, which MCoreQAD refuses, has no effect");
    if (parallel.cp > 1 && seq_len % (2 * parallel.cp) != 0)
      note(fmt::format("seq_len {} that is no multiple of 2 * context_parallel, which MCoreQAD refuses, is allowed",
                       seq_len));
    if (parallel.tp > 1 && reading_.config.train.loss.top_k > 0)
      note("distill_topk with tensor_parallel above 1, which MCoreQAD refuses, is allowed");
  }

  std::string file_;
  Reading& reading_;
  std::map<std::string, YamlNode> given_;
  std::vector<std::string> unused_;
};

std::vector<McoreQadKey> make_keys() {
  const std::string p = kBackend;
  return {
      {"global.save_path", "output.path", "default ./output"},
      {"global.max_seq_length", "", ""},
      {"global.hidden_size", "", ""},
      {"global.model_arch_type", "", ""},
      {"global.deploy_backend", "", ""},
      {"model.name", "", "tells hy_v3 where the model's config.json cannot be read"},
      {"model.model_path", "model.path", ""},
      {"model.trust_remote_code", "", "a model's own Python code is never run"},
      {"model.torch_dtype", "", "see --dtype"},
      {"model.device_map", "", ""},
      {"model.low_cpu_mem_usage", "", ""},
      {"model.use_cache", "", ""},
      {"model.cache_dir", "", ""},
      {"compression.name", "", "must be MCoreQAD"},
      {p + "checkpoint_path", "model.checkpoint", "our own kind, made when missing; a Megatron checkpoint is refused"},
      {p + "checkpoint_conversion_cpu", "", "conversion always streams through host memory"},
      {p + "format", "quantize.format", ""},
      {p + "init_scales_path", "quantize.init_scales", "a pickle (.pt, .pth, .pkl, .pickle, .bin) is refused"},
      {p + "lm_weight", "train.loss.lm_weight", "default 1"},
      {p + "distill_weight", "train.loss.distill_weight", "default 0"},
      {p + "distill_type", "train.loss.type", "kl is fkl"},
      {p + "distill_temperature", "train.loss.temperature", ""},
      {p + "distill_topk", "train.loss.top_k", "without the tail"},
      {p + "experts_only", "quantize.experts_only", ""},
      {p + "seq_len", "data.seq_len", "default 256"},
      {p + "micro_batch_size", "train.micro_batch", "default 1"},
      {p + "train_iters", "train.steps", "default 100"},
      {p + "recompute", "train.recompute", "default true"},
      {p + "save_every", "train.save_every", ""},
      {p + "parallel.tensor_parallel", "parallel.tp", ""},
      {p + "parallel.pipeline_parallel", "parallel.pp", ""},
      {p + "parallel.expert_parallel", "parallel.ep", ""},
      {p + "parallel.context_parallel", "parallel.cp", ""},
      {p + "parallel.sequence_parallel", "parallel.sp", ""},
      {p + "optim.lr", "train.lr", "default 2e-4"},
      {p + "optim.weight_decay", "train.weight_decay", "default 0"},
      {p + "optim.betas", "train.betas", "default [0.9, 0.95]"},
      {p + "optim.grad_clip", "train.clip", "default 1"},
      {"dataset.name", "", "the kind of a sample is seen from the sample"},
      {"dataset.data_path", "data.train", "left away: random tokens"},
      {"dataset.max_seq_length", "", ""},
      {"dataset.num_samples", "", ""},
      {"dataset.batch_size", "", ""},
      {"dataset.shuffle", "", ""},
  };
}

}  // namespace

const std::vector<McoreQadKey>& mcore_qad_keys() {
  static const std::vector<McoreQadKey> kKeys = make_keys();
  return kKeys;
}

bool is_mcore_qad(const YamlNode& root) { return root.find("compression") != nullptr; }

void translate_mcore_qad(const YamlNode& root, const std::string& path, Reading& reading) {
  Translation(path, reading).run(root);
}

}  // namespace scalewright
