// Reading safetensors: the file is mapped, its header checked whole before anything is handed out.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

constexpr std::uint64_t kLengthBytes = 8;              // the header's length, little endian
constexpr std::uint64_t kLargestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMostTensors = 1'000'000;
constexpr std::size_t kMostDimensions = 64;

/// Reads one non-negative integer of the header.
std::uint64_t unsigned_of(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned()) throw DataError(fmt::format("{}: expected a non-negative integer, found {}", where, value.dump()));
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(INT64_MAX)) throw DataError(fmt::format("{}: {} is out of range", where, number));
  return number;
}

const Json& member(const Json& object, const char* key, Json::value_t type, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw DataError(fmt::format("{}: \"{}\" is missing", where, key));
  if (found->type() != type) throw DataError(fmt::format("{}: \"{}\" has the wrong type ({})", where, key, found->type_name()));
  return *found;
}

/// Bytes of a shape. Sizes of 0 count as 1 for the overflow check, since strides are products too.
std::uint64_t byte_size(const std::vector<int64_t>& shape, at::ScalarType dtype, const std::string& where) {
  int64_t product = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
      throw DataError(fmt::format("{}: the size of shape [{}] overflows", where, fmt::join(shape, ", ")));
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

TensorEntry parse_entry(const std::string& name, const Json& value, const std::string& where) {
  if (!value.is_object()) throw DataError(fmt::format("{}: expected an object, found {}", where, value.type_name()));
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") throw DataError(fmt::format("{}: unknown key \"{}\"", where, key));
  }
  TensorEntry entry;
  entry.name = name;
  entry.dtype = dtype_from_name(member(value, "dtype", Json::value_t::string, where).get_ref<const std::string&>(), where);
  const Json& shape = member(value, "shape", Json::value_t::array, where);
  if (shape.size() > kMostDimensions) throw DataError(fmt::format("{}: {} dimensions, more than {}", where, shape.size(), kMostDimensions));
  for (const Json& size : shape) entry.shape.push_back(static_cast<int64_t>(unsigned_of(size, where + ", shape")));
  const Json& offsets = member(value, "data_offsets", Json::value_t::array, where);
  if (offsets.size() != 2) throw DataError(fmt::format("{}: data_offsets has {} numbers, not 2", where, offsets.size()));
  entry.begin = unsigned_of(offsets[0], where + ", data_offsets");
  entry.end = unsigned_of(offsets[1], where + ", data_offsets");

  const std::uint64_t expected = byte_size(entry.shape, entry.dtype, where);
  if (entry.end < entry.begin || entry.end - entry.begin != expected) {
    throw DataError(fmt::format("{}: data_offsets ({}, {}) do not span the {} bytes of {} [{}]", where, entry.begin, entry.end,
                                expected, dtype_name(entry.dtype), fmt::join(entry.shape, ", ")));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const Json& value, const std::string& where) {
  if (!value.is_object()) throw DataError(fmt::format("{}: __metadata__ is not an object", where));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw DataError(fmt::format("{}: __metadata__.{} is not a string", where, key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// The tensors in file order must cover the data section exactly.
void check_cover(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes, const std::string& path) {
  std::uint64_t at = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < at) throw DataError(fmt::format("{}: tensor {}: overlaps the tensor before it ({} < {})", path, entry.name, entry.begin, at));
    if (entry.begin > at) throw DataError(fmt::format("{}: tensor {}: a hole of {} bytes lies before it", path, entry.name, entry.begin - at));
    if (entry.end > data_bytes) {
      throw DataError(fmt::format("{}: tensor {}: ends at byte {} of a data section of {} bytes\nhint: the file is truncated; fetch it again",
                                  path, entry.name, entry.end, data_bytes));
    }
    at = entry.end;
  }
  if (at != data_bytes) throw DataError(fmt::format("{}: {} bytes after the last tensor", path, data_bytes - at));
}

/// The file opened and mapped whole, read-only.
class MappedBytes {
 public:
  explicit MappedBytes(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw DataError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    struct stat info {};
    const bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    size_ = regular ? static_cast<std::uint64_t>(info.st_size) : 0;
    void* address = size_ > 0 ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
    const int error_number = errno;
    close(descriptor);
    if (!regular) throw DataError(fmt::format("{}: is not a regular file", path));
    if (size_ == 0) throw DataError(fmt::format("{}: is empty", path));
    if (address == MAP_FAILED) throw DataError(fmt::format("{}: cannot be mapped: {}", path, std::strerror(error_number)));
    data_ = static_cast<std::byte*>(address);
  }
  ~MappedBytes() {
    if (data_) munmap(data_, size_);
  }
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace

struct SafetensorsFile::Mapping {
  explicit Mapping(const std::filesystem::path& file) : path(file), bytes(file.string()) {
    const std::uint64_t header_bytes = read_header_length();
    data_begin = kLengthBytes + header_bytes;
    parse_header({reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes});
  }

  std::uint64_t read_header_length() const {
    const std::string where = path.string();
    if (bytes.size() < kLengthBytes) throw DataError(fmt::format("{}: {} bytes are too few for a safetensors file", where, bytes.size()));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kLargestHeader) {
      throw DataError(fmt::format("{}: a header of {} bytes, more than the format's limit of {}\nhint: is it a safetensors file?",
                                  where, length, kLargestHeader));
    }
    if (length > bytes.size() - kLengthBytes) {
      throw DataError(fmt::format("{}: the header has {} bytes, but only {} follow\nhint: the file is truncated; fetch it again", where,
                                  length, bytes.size() - kLengthBytes));
    }
    if (length < 2) throw DataError(fmt::format("{}: a header of {} bytes is too short", where, length));
    return length;
  }

  void parse_header(std::string_view text) {
    const std::string where = path.string();
    if (text[0] != '{') throw DataError(fmt::format("{}: the header does not begin with '{{'", where));
    const Json header = parse_json(text, where + " (header)");
    if (header.size() > kMostTensors) throw DataError(fmt::format("{}: {} tensors, more than {}", where, header.size(), kMostTensors));
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata = parse_metadata(value, where);
      } else {
        entries.push_back(parse_entry(name, value, fmt::format("{}: tensor {}", where, name)));
      }
    }
    std::stable_sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    check_cover(entries, bytes.size() - data_begin, where);
    for (std::size_t i = 0; i < entries.size(); ++i) index.emplace(entries[i].name, i);
  }

  std::filesystem::path path;
  MappedBytes bytes;
  std::uint64_t data_begin = 0;
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string, std::size_t> index;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : mapping_(std::make_shared<Mapping>(path)) {}

const std::filesystem::path& SafetensorsFile::path() const { return mapping_->path; }

const std::vector<TensorEntry>& SafetensorsFile::entries() const { return mapping_->entries; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return mapping_->metadata; }

std::uint64_t SafetensorsFile::file_size() const { return mapping_->bytes.size(); }

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = mapping_->index.find(name);
  return found == mapping_->index.end() ? nullptr : &mapping_->entries[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return {mapping_->bytes.data() + mapping_->data_begin + entry.begin, entry.end - entry.begin};
}

std::span<const std::byte> SafetensorsFile::header_bytes() const { return {mapping_->bytes.data(), mapping_->data_begin}; }

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const TensorEntry* entry = find(name);
  if (!entry) throw DataError(fmt::format("{}: no tensor {}", mapping_->path.string(), name));
  const auto options = at::TensorOptions().dtype(entry->dtype);
  if (entry->begin == entry->end) return at::empty(entry->shape, options);
  std::byte* data = mapping_->bytes.data() + mapping_->data_begin + entry->begin;
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(entry->dtype) != 0) {
    at::Tensor copy = at::empty(entry->shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, entry->end - entry->begin);
    return copy;
  }
  return at::from_blob(data, entry->shape, [mapping = mapping_](void*) {}, options);
}

std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const TensorEntry& entry : file.entries()) tensors.emplace(entry.name, file.tensor(entry.name));
  return tensors;
}

}  // namespace scalewright
