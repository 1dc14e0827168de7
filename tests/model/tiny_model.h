// A reference model as a value: change its config or its tensors, write it to a temporary folder, and see what loading says.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "model/weights.h"
#include "store/safetensors.h"

namespace scalewright {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "scalewright-model-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path reference_folder(const std::string& name) {
  return std::filesystem::path(SCALEWRIGHT_TEST_DATA) / "reference" / name;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

struct TinyModel {
  Json config;
  std::map<std::string, at::Tensor> tensors;

  explicit TinyModel(const std::string& reference)
      : config(read_json(reference_folder(reference) / "config.json")), tensors(load_tensors(reference_folder(reference) / "model.safetensors")) {}

  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }

  /// Every `from` within a name becomes `to`.
  void replace_in_names(const std::string& from, const std::string& to) {
    std::map<std::string, at::Tensor> renamed;
    for (const auto& [name, tensor] : tensors) {
      std::string other = name;
      if (const auto at = other.find(from); at != std::string::npos) other.replace(at, from.size(), to);
      renamed.emplace(other, tensor);
    }
    tensors = std::move(renamed);
  }

  /// Experts as transformers 5 keeps them in memory.
  void fuse_experts(int64_t layer, int64_t experts, const std::string& suffix = "") {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    std::vector<at::Tensor> gate_up, down;
    for (int64_t e = 0; e < experts; ++e) {
      const auto take = [&](const char* module) { return tensors.extract(fmt::format("{}{}.{}.weight", prefix, e, module)).mapped(); };
      gate_up.push_back(at::cat({take("gate_proj"), take("up_proj")}));
      down.push_back(take("down_proj"));
    }
    tensors[prefix + "gate_up_proj" + suffix] = at::stack(gate_up);
    tensors[prefix + "down_proj" + suffix] = at::stack(down);
  }

  void write(const std::filesystem::path& folder) const {
    write_text(folder / "config.json", config.dump(1));
    save_tensors(folder / "model.safetensors", tensors);
  }

  /// Tensor i goes to shard i modulo `shards`; returns the index as written.
  Json write_sharded(const std::filesystem::path& folder, int64_t shards) const {
    write_text(folder / "config.json", config.dump(1));
    Json index{{"metadata", Json::object()}, {"weight_map", Json::object()}};
    std::vector<std::map<std::string, at::Tensor>> parts(shards);
    int64_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      const int64_t shard = i++ % shards;
      parts[shard].emplace(name, tensor);
      index["weight_map"][name] = shard_name(shard, shards);
    }
    for (int64_t shard = 0; shard < shards; ++shard) save_tensors(folder / shard_name(shard, shards), parts[shard]);
    write_index(folder, index);
    return index;
  }

  static std::string shard_name(int64_t shard, int64_t shards) { return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards); }
  static void write_index(const std::filesystem::path& folder, const Json& index) {
    write_text(folder / "model.safetensors.index.json", index.dump(1));
  }
};

inline ModelWeights load_weights(const std::filesystem::path& folder) { return ModelWeights(folder, read_model_config(folder)); }

/// The message of the E that `action` throws; all of `parts` must be in it.
template <typename E>
void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const E& error) {
    for (const std::string& part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no \"" << part << "\" in: " << error.what();
    return;
  } catch (const std::exception& error) {
    FAIL() << "another exception: " << error.what();
  }
  FAIL() << "no exception; expected one with: " << fmt::format("{}", fmt::join(parts, " | "));
}

}  // namespace scalewright
