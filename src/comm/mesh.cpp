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

Mesh Mesh::connect(const Degrees& degrees, const World& world) {
  if (world.size == 1) return single(degrees);
  check_degrees(degrees, world.size);
  const Rendezvous meeting(world, kTimeout);
  const int rank = world.rank, tp = degrees.tp, cp = degrees.cp, dp = degrees.dp, stage = tp * cp * dp;
  Mesh mesh;
  mesh.watchdog_ = meeting.watchdog();
  mesh.degrees_ = degrees;
  mesh.degrees_.sp = tp > 1;
  mesh.rank_ = rank;
  mesh.world_ = meeting.group("world", line(rank, 1, world.size));
  mesh.tp_ = meeting.group("tp", line(rank, 1, tp));
  mesh.cp_ = meeting.group("cp", line(rank, tp, cp));
  mesh.dp_ = meeting.group("dp", line(rank, tp * cp, dp));
  mesh.pp_ = meeting.group("pp", line(rank, stage, degrees.pp));
  mesh.data_ = meeting.group("data", line(rank, tp, cp * dp));
  mesh.stage_ = meeting.group("stage", line(rank, 1, stage));
  mesh.ep_ = meeting.group("ep", line(rank, 1, degrees.ep));
  mesh.edp_ = meeting.group("edp", line(rank, degrees.ep, stage / degrees.ep));
  return mesh;
}

void Mesh::dismiss_watchdog() const {
  if (watchdog_) watchdog_->dismiss();
}

}  // namespace scalewright
