// The mesh: which ranks share which part of the model and of the data.
#pragma once
#include <memory>

#include "comm/group.h"

namespace scalewright {

/// Degrees of parallelism; expert parallelism spans ranks that are DP/CP/TP ranks of the dense part.
struct Degrees {
  int tp = 1, ep = 1, cp = 1, pp = 1, dp = 1;
  bool sp = false;
};

/// The groups of this rank. A mesh of one rank has five groups of one.
class Mesh {
 public:
  /// One process. Throws UserError when `degrees` ask for more than one rank (other layouts come with the distributed backends).
  static Mesh single(const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  const Group& world() const { return *world_; }
  const Group& tp() const { return *tp_; }
  const Group& ep() const { return *ep_; }
  const Group& cp() const { return *cp_; }
  const Group& pp() const { return *pp_; }
  const Group& dp() const { return *dp_; }

 private:
  Mesh() = default;
  Degrees degrees_;
  std::shared_ptr<const Group> world_, tp_, ep_, cp_, pp_, dp_;
};

}  // namespace scalewright
