// Groups over c10d's Gloo, found through one TCP store.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"

namespace scalewright {

/// The meeting place of all ranks.
class Rendezvous {
 public:
  /// Connects to (on rank 0: serves) the store. Throws CommError when it cannot be reached within `timeout`.
  Rendezvous(const World& world, std::chrono::seconds timeout);
  ~Rendezvous();

  /// A group of `ranks` (of the world, ascending), which must contain this rank; `name` is the same on all of them and used once.
  std::unique_ptr<Group> group(const std::string& name, const std::vector<int>& ranks) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scalewright
