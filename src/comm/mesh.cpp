#include "comm/mesh.h"

#include "base/error.h"
#include "comm/gloo.h"

namespace scalewright {

namespace {

constexpr std::chrono::seconds kTimeout{1800};   // a peer may load a large model while the others wait

void require_one(const char* name, int degree) {
  if (degree == 1) return;
  throw UserError(fmt::format("parallel.{} is {}, but this is one process\nhint: start several with torchrun, srun or `scalewright launch --nproc N -- ...`, or set it to 1",
                              name, degree));
}

void check_degrees(const Degrees& d, int world) {
  if (d.sp && d.tp == 1) throw UserError("parallel.sp is on, but parallel.tp is 1\nhint: sequence parallelism splits tokens over tp ranks: raise tp or leave sp away");
  const int dense = d.tp * d.cp * d.pp;
  if (world % dense != 0)
    throw UserError(fmt::format("{} ranks cannot be split into tp {} x cp {} x pp {}\nhint: the number of ranks must be a multiple of {}", world, d.tp, d.cp, d.pp, dense));
  if (dense * d.dp != world)
    throw UserError(fmt::format("tp {} x cp {} x pp {} x dp {} is {} ranks, but {} were started\nhint: leave parallel.dp away: it is what is left", d.tp, d.cp, d.pp, d.dp,
                                dense * d.dp, world));
  if (world % (d.ep * d.pp) != 0)
    throw UserError(fmt::format("{} ranks cannot be split into ep {} x pp {}\nhint: parallel.ep must divide the {} ranks of a pipeline stage", world, d.ep, d.pp, world / d.pp));
}

/// The ranks that differ from `rank` only in the digit of weight `stride` and base `count`.
std::vector<int> line(int rank, int stride, int count) {
  const int own = rank / stride % count;
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(rank + (i - own) * stride);
  return ranks;
}

}  // namespace

Mesh Mesh::single(const Degrees& degrees) {
  require_one("tp", degrees.tp);
  require_one("ep", degrees.ep);
  require_one("cp", degrees.cp);
  require_one("pp", degrees.pp);
  require_one("dp", degrees.dp);
  if (degrees.sp) check_degrees(degrees, 1);
  const std::shared_ptr<const Group> one = make_single_group();
  Mesh mesh;
  mesh.degrees_ = degrees;
  mesh.world_ = mesh.tp_ = mesh.cp_ = mesh.dp_ = mesh.pp_ = mesh.data_ = mesh.stage_ = mesh.ep_ = mesh.edp_ = one;
  return mesh;
}

std::vector<int> Mesh::group_ranks(const Degrees& d, int world, int rank, const std::string& name) {
  const int stage = d.tp * d.cp * d.dp;
  if (name == "tp") return line(rank, 1, d.tp);
  if (name == "cp") return line(rank, d.tp, d.cp);
  if (name == "dp") return line(rank, d.tp * d.cp, d.dp);
  if (name == "data") return line(rank, d.tp, d.cp * d.dp);
  if (name == "stage") return line(rank, 1, stage);
  if (name == "pp") return line(rank, stage, d.pp);
  if (name == "ep") return line(rank, 1, d.ep);
  if (name == "edp") return line(rank, d.ep, stage / d.ep);
  SW_CHECK(name == "world", "no group {}", name);
  return line(rank, 1, world);
}

Mesh Mesh::with_groups(const Degrees& degrees, int world, int rank, const std::function<std::shared_ptr<const Group>(const std::string&)>& make) {
  check_degrees(degrees, world);
  Mesh mesh;
  mesh.degrees_ = degrees;
  mesh.degrees_.sp = degrees.tp > 1;
  mesh.rank_ = rank;
  for (const auto& [name, group] : {std::pair("world", &mesh.world_), {"tp", &mesh.tp_}, {"cp", &mesh.cp_}, {"dp", &mesh.dp_}, {"pp", &mesh.pp_},
                                    {"data", &mesh.data_}, {"stage", &mesh.stage_}, {"ep", &mesh.ep_}, {"edp", &mesh.edp_}})
    *group = make(name);
  return mesh;
}

Mesh Mesh::connect(const Degrees& degrees, const World& world) {
  if (world.size == 1) return single(degrees);
  check_degrees(degrees, world.size);   // before anybody waits for the others
  const Rendezvous meeting(world, kTimeout);
  Mesh mesh = with_groups(degrees, world.size, world.rank, [&](const std::string& name) -> std::shared_ptr<const Group> {
    return meeting.group(name, group_ranks(degrees, world.size, world.rank, name));
  });
  mesh.watchdog_ = meeting.watchdog();
  return mesh;
}

Mesh Mesh::planned(const Degrees& degrees, int world, int rank) {
  return with_groups(degrees, world, rank, [&](const std::string& name) -> std::shared_ptr<const Group> {
    const std::vector<int> ranks = group_ranks(degrees, world, rank, name);
    return make_planned_group(static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()), static_cast<int>(ranks.size()));
  });
}

void Mesh::dismiss_watchdog() const {
  if (watchdog_) watchdog_->dismiss();
}

}  // namespace scalewright
