// safetensors files: memory-mapped reading with every bound checked, and streamed, reproducible writing.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace scalewright {

/// One tensor of a file's header.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, relative to the data section
};

/// The header's spelling of a dtype ("BF16", "F8_E4M3", "I32", "U8", ...), and back. Throws DataError for an unknown one.
std::string dtype_name(at::ScalarType dtype);
at::ScalarType dtype_from_name(const std::string& name, const std::string& where);

/// A mapped file. Checked on opening: header at most 100 MB, no duplicate, overlap, hole or overflow, spans equal shape x dtype,
/// offsets inside the file. Throws DataError naming the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const;
  const std::vector<TensorEntry>& entries() const;                    // in file order
  const std::map<std::string, std::string>& metadata() const;         // "__metadata__"
  const TensorEntry* find(const std::string& name) const;             // nullptr when absent
  /// A read-only view of the mapping, kept alive by the tensor (a copy where the file's offset is not a multiple of the element
  /// size). Writing into it is a segmentation fault. Throws DataError when the name is absent.
  at::Tensor tensor(const std::string& name) const;
  /// The bytes of a tensor, and everything before the data section; valid as long as this object.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  std::span<const std::byte> header_bytes() const;
  std::uint64_t file_size() const;

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;
};

/// A tensor to be written: its name, dtype and shape must be known before the first byte.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

/// Writes one file front to back. Tensors must come in the order of `specs`; the header is a function of specs and metadata only,
/// so the same input gives the same bytes. The data section starts at a multiple of 8. The file appears under its name only with
/// `finish`, which syncs; without it nothing remains. Throws DiskError.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs, const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  /// The next tensor (any device or strides; converted to contiguous CPU memory). Throws BugError if it is not the next spec.
  void write(const std::string& name, const at::Tensor& value);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Convenience: all tensors at once, sorted by name, atomically (temporary file, fsync, rename).
void save_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors, const std::map<std::string, std::string>& metadata = {});
/// Convenience: all tensors of a file (views of the mapping).
std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& path);

}  // namespace scalewright
