// Groups over c10d's Gloo, found through one TCP store.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace scalewright {

/// The meeting place of all ranks, with the watchdog over them.
class Rendezvous {
 public:
  /// Connects to (on rank 0: serves) the store. Throws CommError when it cannot be reached within `timeout`.
  Rendezvous(const World& world, std::chrono::seconds timeout, std::chrono::seconds silence = std::chrono::seconds(10));
  ~Rendezvous();

  const std::shared_ptr<Watchdog>& watchdog() const;

  /// A group of `ranks` (of the world, ascending), which must contain this rank; `name` is the same on all of them and used once.
  std::unique_ptr<Group> group(const std::string& name, const std::vector<int>& ranks) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace scalewright
