// The tiny reference models in float64, with and without quantizers.
#pragma once
#include <memory>

#include "model/decoder.h"
#include "store/safetensors.h"

namespace scalewright {

inline std::filesystem::path reference_folder(const std::string& name) { return std::filesystem::path(SCALEWRIGHT_TEST_DATA) / "reference" / name; }

/// `eos`: the model's stop tokens (the reference configurations name none).
inline std::unique_ptr<Decoder> reference_model(const std::string& name, const std::vector<int64_t>& eos) {
  ModelConfig config = read_model_config(reference_folder(name));
  config.eos = eos;
  const ModelWeights weights(reference_folder(name), config);
  Compute compute;
  compute.dtype = at::kDouble;
  return std::make_unique<Decoder>(config, weights, compute, Mesh::single({}));
}

inline void quantize_reference(Decoder& decoder, const std::string& format, const std::string& numerics) {
  QuantizeSection quantize;
  quantize.format = format;
  quantize.numerics = numerics;
  decoder.quantize(make_quant_plan(quantize, false, projections(decoder.config())));
}

/// The rows of input_ids [B,S] as lists of ids.
inline std::vector<std::vector<int32_t>> reference_rows(const std::string& name) {
  const at::Tensor ids = load_tensors(reference_folder(name) / "input.safetensors").at("input_ids").to(at::kInt).contiguous();
  std::vector<std::vector<int32_t>> rows;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const int32_t* row = ids.const_data_ptr<int32_t>() + b * ids.size(1);
    rows.emplace_back(row, row + ids.size(1));
  }
  return rows;
}

}  // namespace scalewright
