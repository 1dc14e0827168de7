// Known answers of the reference libraries: tests/data/golden (made by make_quant_vectors.py there).
#pragma once
#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "store/safetensors.h"

namespace scalewright::test {

class Golden {
 public:
  static const Golden& get() {
    static const Golden golden;
    return golden;
  }
  at::Tensor operator[](const std::string& name) const {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) throw std::runtime_error("no golden tensor " + name);
    return it->second;
  }
  /// Prefixes of the index that begin with `begin` and contain `middle`, but for entries in which the library raised.
  std::vector<std::string> prefixes(const std::string& begin, const std::string& middle) const {
    std::vector<std::string> result;
    for (const Json& entry : index_.at("entries")) {
      const std::string prefix = entry.at("prefix");
      if (prefix.starts_with(begin) && prefix.find(middle) != std::string::npos && !entry.contains("raises")) result.push_back(prefix);
    }
    return result;
  }

 private:
  Golden()
      : tensors_(load_tensors(folder() / "quant_vectors.safetensors")), index_(read_json(folder() / "quant_vectors.index.json")) {}
  static std::filesystem::path folder() { return std::filesystem::path(SCALEWRIGHT_TEST_DATA) / "golden"; }
  std::map<std::string, at::Tensor> tensors_;
  Json index_;
};

/// "w/rand/as/nvfp4" -> {"w", "rand", "as", "nvfp4"}.
inline std::vector<std::string> parts(const std::string& prefix) {
  std::vector<std::string> result(1);
  for (const char c : prefix)
    if (c == '/') result.emplace_back();
    else result.back() += c;
  return result;
}

/// Equal values (+0 equals -0); at most `ulps` units in the last place apart in float32.
inline void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what, int ulps = 0) {
  const at::Tensor g = got.detach().to(at::kFloat).reshape(-1).contiguous(), w = want.to(at::kFloat).reshape(-1).contiguous();
  ASSERT_EQ(g.numel(), w.numel()) << what;
  int64_t bad = 0;
  for (int64_t i = 0; i < g.numel(); ++i) {
    float a = g.const_data_ptr<float>()[i];
    const float b = w.const_data_ptr<float>()[i];
    for (int k = 0; k < ulps && a != b; ++k) a = std::nextafter(a, b);
    if (!(a == b) && bad++ < 3) ADD_FAILURE() << what << " [" << i << "]: got " << g.const_data_ptr<float>()[i] << ", want " << b;
  }
  EXPECT_EQ(bad, 0) << what << ": of " << g.numel();
}

/// Within `relative` of the largest wanted magnitude.
inline void expect_close(const at::Tensor& got, const at::Tensor& want, double relative, const std::string& what) {
  const at::Tensor w = want.to(at::kDouble).reshape(-1);
  const double largest = w.abs().max().item<double>();
  const double worst = (got.detach().to(at::kDouble).reshape(-1) - w).abs().max().item<double>();
  EXPECT_LE(worst, relative * largest) << what;
}

}  // namespace scalewright::test
