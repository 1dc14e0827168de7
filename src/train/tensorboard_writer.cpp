#include "train/tensorboard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <chrono>

#include "base/error.h"

namespace scalewright {

namespace {

// protobuf wire format: a field is (number << 3 | wire type), then the value.
enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

template <class Integer>
void put_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_tag(std::string& out, unsigned field, WireType type) { put_varint(out, field << 3 | type); }

void put_double(std::string& out, unsigned field, double value) {
  put_tag(out, field, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, unsigned field, float value) {
  put_tag(out, field, kFixed32);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

void put_integer(std::string& out, unsigned field, std::uint64_t value) {
  put_tag(out, field, kVarint);
  put_varint(out, value);
}

void put_bytes(std::string& out, unsigned field, std::string_view value) {
  put_tag(out, field, kBytes);
  put_varint(out, value.size());
  out.append(value);
}

// Event's fields.
constexpr unsigned kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;

std::string event_header(double wall_time, int64_t step) {
  std::string event;
  put_double(event, kWallTime, wall_time);
  put_integer(event, kStep, static_cast<std::uint64_t>(step));
  return event;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string tfrecord(std::string_view bytes) {
  std::string record;
  put_little_endian(record, static_cast<std::uint64_t>(bytes.size()));
  put_little_endian(record, masked_crc32c(record));
  record.append(bytes);
  put_little_endian(record, masked_crc32c(bytes));
  return record;
}

std::string scalar_event(double wall_time, int64_t step, const std::map<std::string, double>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    put_bytes(entry, 1, tag);
    put_float(entry, 2, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event = event_header(wall_time, step);
  put_bytes(event, kSummary, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> resumed_step) {
  std::filesystem::create_directories(folder);
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}", static_cast<int64_t>(seconds_now()), host, getpid());
  std::string version;
  put_double(version, kWallTime, seconds_now());
  put_bytes(version, kFileVersion, "brain.Event:2");
  append(version);
  if (!resumed_step) return;
  std::string start = event_header(seconds_now(), *resumed_step + 1), session;
  put_integer(session, 1, 1);  // SessionLog.status = START
  put_bytes(start, kSessionLog, session);
  append(start);
}

void TensorBoardWriter::scalars(int64_t step, const std::map<std::string, double>& values) { append(scalar_event(seconds_now(), step, values)); }

void TensorBoardWriter::append(std::string_view event) {
  const std::string record = tfrecord(event);
  const int file = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const bool written = file >= 0 && write(file, record.data(), record.size()) == static_cast<ssize_t>(record.size());
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written) throw DiskError(fmt::format("{}: cannot append: {}", path_.string(), std::strerror(reason)));
}

}  // namespace scalewright
