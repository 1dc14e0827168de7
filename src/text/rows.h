// Where rows come from: prepared folders, raw files, tensors of ids, or chance; and parts of them.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "config/config.h"
#include "text/dataset.h"

namespace scalewright {

/// Rows 0..n-1 in two parts, (training, validation), each ascending: validation gets min(max_rows, round(fraction * n)) rows, at
/// least 1 when fraction and max_rows are positive and n > 1, and never all. A function of the arguments only.
std::pair<std::vector<int64_t>, std::vector<int64_t>> split_rows(int64_t n, double fraction, int64_t max_rows, std::uint64_t seed);

/// The chosen rows of `source` in the given order; row i of the view has sample_index i.
std::unique_ptr<RowSource> subset_rows(std::shared_ptr<const RowSource> source, std::vector<int64_t> rows);

/// Several sources one after another.
std::unique_ptr<RowSource> concatenated_rows(std::vector<std::unique_ptr<RowSource>> sources);

/// A safetensors file with `input_ids` [B,S] (int32 or int64) and, optionally, `labels` [B,S] (the id itself, or -100: no loss):
/// B rows of one document each. Throws DataError naming the file.
std::unique_ptr<RowSource> open_tensor_rows(const std::filesystem::path& file);

/// Opens `files`: folders of token shards and safetensors files as they are; all others are raw, and prepared together with the
/// tokenizer of `model` into a folder under `cache` (reused when it is there already). No files: random rows of options.seq_len
/// from `seed`, with a warning. Several ranks: one must call it before the others. Throws DataError when a token does not fit
/// `vocabulary`, or for a missing, empty or unusable file.
std::unique_ptr<RowSource> open_rows(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options,
                                     const std::filesystem::path& cache, int64_t vocabulary, Log& log, std::uint64_t seed = 1234);

}  // namespace scalewright
