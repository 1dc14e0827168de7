// Writing safetensors: the header first, then the tensors as they come.
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "store/atomic_file.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

constexpr std::size_t kAlignment = 8;

/// The length and the header, padded with spaces so that the data begins at a multiple of 8.
std::string make_header(const std::vector<TensorSpec>& specs, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{},", Json(metadata).dump());
  std::set<std::string_view> names;
  std::uint64_t at = 0;
  for (const TensorSpec& spec : specs) {
    SW_CHECK(names.insert(spec.name).second, "{} is to be written twice", spec.name);
    std::uint64_t bytes = c10::elementSize(spec.dtype);
    for (const int64_t size : spec.shape) bytes *= static_cast<std::uint64_t>(size);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", Json(spec.name).dump(),
                        dtype_name(spec.dtype), fmt::join(spec.shape, ","), at, at + bytes);
    at += bytes;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result + text;
}

}  // namespace

struct SafetensorsWriter::State {
  State(const std::filesystem::path& path, std::vector<TensorSpec> all) : file(path), specs(std::move(all)) {}
  AtomicFile file;
  std::vector<TensorSpec> specs;
  std::size_t next = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(path, std::move(specs))) {
  state_->file.write(make_header(state_->specs, metadata));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const at::Tensor& value) {
  SW_CHECK(state_->next < state_->specs.size(), "{} comes after the last tensor", name);
  const TensorSpec& spec = state_->specs[state_->next];
  SW_CHECK(name == spec.name, "{} is written where {} is due", name, spec.name);
  SW_CHECK(value.scalar_type() == spec.dtype, "{} is {}, declared as {}", name, at::toString(value.scalar_type()), at::toString(spec.dtype));
  SW_CHECK(value.sizes() == at::IntArrayRef(spec.shape), "{} is [{}], declared as [{}]", name, fmt::join(value.sizes(), ", "),
           fmt::join(spec.shape, ", "));
  const at::Tensor contiguous = value.detach().to(at::kCPU).contiguous();
  state_->file.write({static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()});
  ++state_->next;
}

void SafetensorsWriter::finish() {
  SW_CHECK(state_->next == state_->specs.size(), "only {} of {} tensors were written", state_->next, state_->specs.size());
  state_->file.commit();
}

void save_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, value] : tensors) specs.push_back({name, value.scalar_type(), value.sizes().vec()});
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const auto& [name, value] : tensors) writer.write(name, value);
  writer.finish();
}

}  // namespace scalewright
