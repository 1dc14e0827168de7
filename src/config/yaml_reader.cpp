#include "config/yaml_reader.h"

#include <fstream>
#include <set>
#include <sstream>

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "base/error.h"

namespace scalewright {

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

std::string YamlNode::shown() const {
  switch (kind) {
    case Kind::kNull:
      return "no value";
    case Kind::kSequence:
      return fmt::format("a list of {}", items.size());
    case Kind::kMap:
      return "a map of keys";
    case Kind::kScalar:
      break;
  }
  return quoted ? fmt::format("\"{}\"", text) : fmt::format("'{}'", text);
}

namespace {

std::size_t count_nodes(const YamlNode& node) {
  std::size_t count = 1;
  for (const auto& item : node.items) count += count_nodes(item);
  for (const auto& entry : node.entries) count += 1 + count_nodes(entry.value);
  return count;
}

int depth_of(const YamlNode& node) {
  int depth = 0;
  for (const auto& item : node.items) depth = std::max(depth, depth_of(item));
  for (const auto& entry : node.entries) depth = std::max(depth, depth_of(entry.value));
  return depth + 1;
}

/// Builds the tree from the parser's events.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string name, Problems& problems, const YamlLimits& limits)
      : name_(std::move(name)), problems_(problems), limits_(limits) {}

  YamlNode root;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    leaf(node_at(mark, YamlNode::Kind::kNull), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "an alias cannot stand inside what it names");
    nodes_ += count_nodes(found->second);
    check_size(mark);
    if (static_cast<int>(open_.size()) + depth_of(found->second) > limits_.max_depth) too_deep(mark);
    YamlNode copy = found->second;
    copy.place = place_of(mark);
    accept(std::move(copy));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (tag != "?" && tag != "!" && !tag.empty()) fail(mark, fmt::format("the tag '{}' has no meaning here", tag));
    YamlNode node = node_at(mark, YamlNode::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    leaf(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(node_at(mark, YamlNode::Kind::kSequence), anchor, mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(node_at(mark, YamlNode::Kind::kMap), anchor, mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    std::optional<YamlNode::Entry> pending;  // a key whose value has not come yet
  };

  SourcePlace place_of(const YAML::Mark& mark) const { return {name_, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& why) const {
    throw UserError(place_of(mark).text() + ": " + why);
  }
  [[noreturn]] void too_deep(const YAML::Mark& mark) const {
    fail(mark, fmt::format("nested deeper than {} levels", limits_.max_depth));
  }
  void check_size(const YAML::Mark& mark) const {
    if (nodes_ > limits_.max_nodes)
      fail(mark, fmt::format("more than {} values (aliases count each time they are used)", limits_.max_nodes));
  }

  YamlNode node_at(const YAML::Mark& mark, YamlNode::Kind kind) {
    ++nodes_;
    check_size(mark);
    YamlNode node;
    node.kind = kind;
    node.place = place_of(mark);
    return node;
  }

  void leaf(YamlNode node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    accept(std::move(node));
  }

  void open(YamlNode node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) too_deep(mark);
    open_.push_back({std::move(node), anchor, std::nullopt});
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    leaf(std::move(done.node), done.anchor);
  }

  /// A finished node goes where the innermost open one wants it.
  void accept(YamlNode node) {
    if (open_.empty()) {
      root = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kSequence) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.pending) {
      if (node.kind != YamlNode::Kind::kScalar)
        throw UserError(node.place.text() + ": a key must be a word, not " + node.shown());
      parent.pending = YamlNode::Entry{node.text, node.place, {}};
    } else {
      finish_entry(parent, std::move(node));
    }
  }

  void finish_entry(Open& parent, YamlNode value) {
    YamlNode::Entry entry = std::move(*parent.pending);
    parent.pending.reset();
    if (value.is_null()) value.place = entry.place;
    for (const auto& other : parent.node.entries) {
      if (other.key != entry.key) continue;
      problems_.add(entry.place,
                    fmt::format("key '{}' is given twice (first at line {})", entry.key, other.place.line));
      return;
    }
    entry.value = std::move(value);
    parent.node.entries.push_back(std::move(entry));
  }

  std::string name_;
  Problems& problems_;
  YamlLimits limits_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  std::size_t nodes_ = 0;
};

/// Whether line `number` (from 1), or one of the three before it, is indented with a tab; the parser notices late.
std::optional<int> tab_near(std::string_view text, int number) {
  int line = 1;
  std::size_t begin = 0;
  std::optional<int> found;
  while (begin <= text.size() && line <= number) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto indent = text.substr(begin, end - begin).find_first_not_of(' ');
    if (indent != std::string_view::npos && text[begin + indent] == '\t' && line >= number - 3) found = line;
    begin = end + 1;
    ++line;
  }
  return found;
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& name, Problems& problems, const YamlLimits& limits) {
  if (text.size() > limits.max_bytes)
    throw UserError(fmt::format("{}: {} bytes, more than the {} that a configuration may have", name, text.size(),
                                limits.max_bytes));
  if (text.find('\0') != std::string_view::npos) throw UserError(name + ": not a text file (it holds a zero byte)");
  TreeBuilder builder(name, problems, limits);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    YamlNode root = std::move(builder.root);
    Problems ignored;
    TreeBuilder rest(name, ignored, limits);
    if (parser.HandleNextDocument(rest) && !rest.root.is_null())
      throw UserError(rest.root.place.text() + ": a second YAML document; a configuration is one document");
    return root;
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line + 1;
    if (const auto tab = tab_near(text, line))
      throw UserError(
          fmt::format("{}:{}:1: YAML cannot be indented with tabs\nhint: replace the tab with spaces", name, *tab));
    throw UserError(fmt::format("{}:{}:{}: not YAML: {}", name, line, error.mark.column + 1, error.msg));
  }
}

YamlNode read_yaml(const std::string& path, Problems& problems, const YamlLimits& limits) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) throw UserError(fmt::format("{}: no such file", path));
  if (fs::is_directory(status)) throw UserError(fmt::format("{}: is a folder, a YAML file was expected", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(fmt::format("{}: cannot be read ({})", path, std::strerror(errno)));
  std::string text(limits.max_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse_yaml(text, path, problems, limits);
}

}  // namespace scalewright
