// The parts of a config.json that take more than one key to understand. Internal to reading a ModelConfig.
#pragma once
#include <filesystem>
#include <vector>

#include "model/config.h"
#include "model/config_keys.h"

namespace scalewright {

/// [layers]: whether a layer's MLP is a mixture of experts, from mlp_layer_types, first_k_dense_replace, or mlp_only_layers with
/// decoder_sparse_step; those that are given must agree. Needs type, layers and experts. Throws DataError.
std::vector<bool> read_sparse_layers(const ConfigKeys& keys, const ModelConfig& config);

/// Throws DataError if a layer attends through a window shorter than max_position_embeddings. Needs type, layers and max_position.
void refuse_sliding_window(const ConfigKeys& keys, const ModelConfig& config);

/// rope_parameters (transformers 5) or rope_scaling with rope_theta (hub). Throws DataError.
RopeConfig read_rope(const ConfigKeys& keys, const std::filesystem::path& file, double default_theta, int64_t max_position);

}  // namespace scalewright
