#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>
namespace gloo::rendezvous {
// The order of the virtual functions is the library's.
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout);
  virtual bool has_v2_support();
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys);
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values);
  virtual void append(const std::string& key, const std::vector<char>& data);
  virtual std::int64_t add(const std::string& key, std::int64_t value);
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(30);
};
}  // namespace gloo::rendezvous
