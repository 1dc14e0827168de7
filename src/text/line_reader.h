// Lines of a data file, one after another, with bounded memory.
#pragma once
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace scalewright {

/// A line longer than this is an error of that line (the worker refuses it too); it is never held in memory.
inline constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

class LineReader {
 public:
  /// Throws DataError when the file is missing or cannot be read.
  explicit LineReader(const std::filesystem::path& path);

  /// The next line that is not blank, without "\r\n" (and without a byte order mark at the start of the file); false at the end.
  bool next();
  const std::string& line() const { return line_; }
  bool too_long() const { return too_long_; }        // line() is then empty
  int64_t number() const { return number_; }         // from 1
  int64_t bytes_read() const { return bytes_read_; } // of the file so far

 private:
  bool read_raw_line();
  bool fill();

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string buffer_, line_;
  std::size_t position_ = 0;
  bool too_long_ = false;
  int64_t number_ = 0, bytes_read_ = 0;
};

}  // namespace scalewright
