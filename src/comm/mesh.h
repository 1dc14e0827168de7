// The mesh: which ranks share which part of the model and of the data.
#pragma once
#include <memory>

#include "comm/group.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace scalewright {

/// Degrees of parallelism; expert parallelism spans ranks that are DP/CP/TP ranks of the dense part.
struct Degrees {
  int tp = 1, ep = 1, cp = 1, pp = 1, dp = 1;
  bool sp = false;   // with tp > 1 the tokens between the linears are always split over tp
  int first_stage_layers = 0, last_stage_layers = 0;   // of the pipeline; 0: even
  bool shard_dense = false;   // dense weights are spread over the data group, and gathered for each product
};

/// The groups of this rank. Ranks count tp fastest, then cp, dp, pp; the ranks of a pipeline stage are cut into runs of `ep`.
class Mesh {
 public:
  /// One process. Throws UserError when `degrees` ask for more than one rank.
  static Mesh single(const Degrees& degrees);
  /// The whole mesh of a launched world (all ranks must call it), or single() for a world of one. Throws UserError naming the number to
  /// change when the degrees do not fit the world.
  static Mesh connect(const Degrees& degrees, const World& world);

  /// Rank `rank` of a world that does not exist (yet): its groups know their numbers only. Throws as connect does.
  static Mesh planned(const Degrees& degrees, int world, int rank);
  /// The ranks of one of this rank's groups: "tp", "cp", "dp", "pp", "ep" or "edp".
  static std::vector<int> group_ranks(const Degrees& degrees, int world, int rank, const std::string& name);

  const Degrees& degrees() const { return degrees_; }
  int rank() const { return rank_; }
  int size() const { return world_->size(); }
  bool first() const { return rank_ == 0; }
  /// Before all ranks end in the same way by an exception: it is no failure of one of them.
  void dismiss_watchdog() const;
  const Group& world() const { return *world_; }
  const Group& tp() const { return *tp_; }
  const Group& cp() const { return *cp_; }
  const Group& dp() const { return *dp_; }
  const Group& pp() const { return *pp_; }
  const Group& data() const { return *data_; }     // cp x dp: other tokens, the same part of the dense weights
  const Group& stage() const { return *stage_; }   // tp x cp x dp: all that hold the same layers
  const Group& ep() const { return *ep_; }         // other experts
  const Group& edp() const { return *edp_; }       // the same experts, other tokens

 private:
  Mesh() = default;
  static Mesh with_groups(const Degrees& degrees, int world, int rank, const std::function<std::shared_ptr<const Group>(const std::string&)>& make);
  Degrees degrees_;
  int rank_ = 0;
  std::shared_ptr<Watchdog> watchdog_;   // none on one rank
  std::shared_ptr<const Group> world_, tp_, cp_, dp_, pp_, data_, stage_, ep_, edp_;
};

}  // namespace scalewright
