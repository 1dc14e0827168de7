#include "text/line_reader.h"

#include <cerrno>

#include "base/error.h"

namespace scalewright {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r\f\v") == std::string::npos; }

}  // namespace

LineReader::LineReader(const std::filesystem::path& path) : path_(path), file_(nullptr, std::fclose) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw DataError(fmt::format("{}: no such file", path.string()));
  if (std::filesystem::is_directory(status))
    throw DataError(fmt::format("{}: a folder, but not one of prepared token shards (no manifest.json of ours)\nhint: name its .jsonl files", path.string()));
  if (!std::filesystem::is_regular_file(status)) throw DataError(fmt::format("{}: not a plain file (a pipe or a device)\nhint: write the lines to a file first", path.string()));
  file_.reset(std::fopen(path.c_str(), "rb"));
  if (!file_) throw DataError(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)));
}

bool LineReader::next() {
  while (read_raw_line()) {
    ++number_;
    if (number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.erase(0, 3);
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (too_long_ || !is_blank(line_)) return true;
  }
  return false;
}

/// Up to the next '\n' or the end of the file; false when nothing is left.
bool LineReader::read_raw_line() {
  line_.clear();
  too_long_ = false;
  bool any = false;
  while (position_ < buffer_.size() || fill()) {
    any = true;
    const std::size_t end = buffer_.find('\n', position_);
    const std::size_t stop = end == std::string::npos ? buffer_.size() : end;
    if (line_.size() + (stop - position_) > kMaxLineBytes) too_long_ = true;
    if (too_long_) line_.clear();
    else line_.append(buffer_, position_, stop - position_);
    position_ = end == std::string::npos ? stop : stop + 1;
    if (end != std::string::npos) break;
  }
  return any;
}

bool LineReader::fill() {
  buffer_.resize(kBufferBytes);
  const std::size_t got = std::fread(buffer_.data(), 1, buffer_.size(), file_.get());
  if (got == 0 && std::ferror(file_.get())) throw DataError(fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(errno)));
  buffer_.resize(got);
  position_ = 0;
  bytes_read_ += static_cast<int64_t>(got);
  return got > 0;
}

}  // namespace scalewright
