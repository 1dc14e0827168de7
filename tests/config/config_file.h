// A configuration file that lives as long as a test.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "config/config.h"

namespace scalewright {

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    const auto folder = std::filesystem::temp_directory_path() / ("scalewright-config-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    path_ = (folder / "run.yaml").string();
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~ConfigFile() { std::filesystem::remove_all(std::filesystem::path(path_).parent_path()); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  const std::string& path() const { return path_; }
  Config load(const std::vector<std::string>& overrides = {}) const { return load_config(path_, overrides); }

  /// The lines of the error of loading it, without the folder; empty when it loads.
  std::vector<std::string> errors(const std::vector<std::string>& overrides = {}) const {
    try {
      load(overrides);
    } catch (const UserError& error) {
      return lines_of(error.what());
    }
    return {};
  }

 private:
  std::vector<std::string> lines_of(std::string text) const {
    const std::string folder = std::filesystem::path(path_).parent_path().string() + "/";
    for (std::size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = std::min(text.find('\n', begin), text.size());
      lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines;
  }

  std::string path_;
};

}  // namespace scalewright
