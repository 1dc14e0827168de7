#include "base/json.h"

#include <fstream>

#include <fmt/format.h>

#include "base/error.h"

namespace scalewright {

namespace {

/// Builds the value from the parser's events. nlohmann's own builder lets the last of two equal keys win and has no depth limit.
class GuardedBuilder : public nlohmann::json_sax<Json> {
 public:
  GuardedBuilder(const std::string& where, int max_depth) : where_(where), max_depth_(max_depth) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  // Integers above 64 bits arrive here and stay doubles: tokenizer_config.json files hold model_max_length = 1e30 spelled out.
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { throw BugError("binary value in JSON text"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      throw DataError(fmt::format("{}: the key \"{}\" appears twice in {}\nhint: keep one of the two", where_, name,
                                  open_.size() == 1 ? "the top-level object" : "the object under \"" + parents_.back() + "\""));
    }
    key_ = name;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();   // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const auto end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    throw DataError(fmt::format("{}: not valid JSON: {}", where_, what));
  }

 private:
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    return &(parent.get_ref<Json::object_t&>()[key_] = std::move(value));
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      throw DataError(fmt::format("{}: nested more than {} deep", where_, max_depth_));
    }
    parents_.push_back(key_);
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    parents_.pop_back();
    return true;
  }

  const std::string& where_;
  int max_depth_;
  Json root_;
  std::vector<Json*> open_;            // pointers stay valid: only the innermost container grows
  std::vector<std::string> parents_;   // the key under which each open container lies
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw DataError(fmt::format("{}: {} bytes of JSON, more than the limit of {}", where, text.size(), limits.max_bytes));
  }
  // To nlohmann's lexer a NUL byte is the end of the text, and whatever follows would go unseen.
  if (const auto at = text.find('\0'); at != text.npos) throw DataError(fmt::format("{}: not valid JSON: a NUL byte at offset {}", where, at));
  GuardedBuilder builder(where, limits.max_depth);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) throw DataError(fmt::format("{}: no such file", path.string()));
  if (std::filesystem::is_directory(status)) throw DataError(fmt::format("{}: is a folder, not a JSON file", path.string()));
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw DataError(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)));

  std::string text;
  std::vector<char> chunk(1 << 16);
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    text.append(chunk.data(), static_cast<std::size_t>(stream.gcount()));
    if (text.size() > limits.max_bytes) {
      throw DataError(fmt::format("{}: larger than the limit of {} bytes for JSON", path.string(), limits.max_bytes));
    }
  }
  if (stream.bad()) throw DataError(fmt::format("{}: cannot be read", path.string()));
  return parse_json(text, path.string(), limits);
}

}  // namespace scalewright
