// TensorBoard event files, by hand: three protobuf messages in TFRecord frames.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace scalewright {

/// CRC-32C (Castagnoli, reflected 0x82F63B78), and TFRecord's masking of it: rotate right by 15, add 0xa282ead8.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

/// One TFRecord: little-endian length (8 bytes), masked CRC of the length, the bytes, masked CRC of the bytes.
std::string tfrecord(std::string_view bytes);

/// A serialized tensorflow.Event {wall_time = 1 double, step = 2 varint, summary = 5 {value = 1 {tag = 1, simple_value = 2 float}}}.
std::string scalar_event(double wall_time, int64_t step, const std::map<std::string, double>& scalars);

/// Appends scalars to <folder>/events.out.tfevents.<seconds>.<host>.<pid>; each run of the program has its own file. With
/// `resumed_step` the file begins with a session start, which makes TensorBoard forget what older files hold beyond that step.
class TensorBoardWriter {
 public:
  TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> resumed_step);
  void scalars(int64_t step, const std::map<std::string, double>& values);
  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view event);
  std::filesystem::path path_;
};

}  // namespace scalewright
