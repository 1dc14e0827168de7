// What is wrong in a configuration, collected so that all of it can be told at once.
#pragma once
#include <string>
#include <vector>

namespace scalewright {

/// Where a value comes from: a file with line and column (from 1), or an override as it was typed (line 0).
struct SourcePlace {
  std::string source;
  int line = 0, column = 0;
  std::string text() const;  // "run.yaml:3:7", or "-o train.steps=x"
};

class Problems {
 public:
  void add(const SourcePlace& place, const std::string& message);
  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }
  /// Throws UserError with one line a problem, in the order of the file; does nothing when there is none.
  void raise() const;

 private:
  struct Problem {
    SourcePlace place;
    std::string message;
  };
  std::vector<Problem> list_;
};

}  // namespace scalewright
