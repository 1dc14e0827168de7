// AngelSlim's YAML for its MCoreQAD backend, translated into our keys.
#pragma once
#include "config/reading.h"

namespace scalewright {

/// Whether a file is AngelSlim's: it has `compression` at the top.
bool is_mcore_qad(const YamlNode& root);

/// Translates every key into `reading` (config, problems under the file's own names, notes about what is done
/// differently). Starts from MCoreQAD's defaults, not ours. Problems: unknown keys with suggestions, another
/// compression than MCoreQAD, scales to start from in a pickle, and whatever our own keys refuse.
void translate_mcore_qad(const YamlNode& root, const std::string& path, Reading& reading);

/// A key of the dialect, for the reference and the JSON schema.
struct McoreQadKey {
  std::string path;  // "compression.MCoreQAD.optim.lr"
  std::string ours;  // "train.lr"; empty: accepted, without effect here
  std::string doc;   // what happens instead, or a remark
};
const std::vector<McoreQadKey>& mcore_qad_keys();

}  // namespace scalewright
