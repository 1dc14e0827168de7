#include "comm/mesh.h"

#include <fmt/format.h>

#include "base/error.h"

namespace scalewright {

namespace {

void require_one(const char* name, int degree) {
  if (degree == 1) return;
  throw UserError(fmt::format("parallel.{} is {}, but this is one process\nhint: this version runs on one rank; set it to 1", name, degree));
}

}  // namespace

Mesh Mesh::single(const Degrees& degrees) {
  require_one("tp", degrees.tp);
  require_one("ep", degrees.ep);
  require_one("cp", degrees.cp);
  require_one("pp", degrees.pp);
  require_one("dp", degrees.dp);
  const std::shared_ptr<const Group> one = make_single_group();
  Mesh mesh;
  mesh.degrees_ = degrees;
  mesh.world_ = mesh.tp_ = mesh.ep_ = mesh.cp_ = mesh.pp_ = mesh.dp_ = one;
  return mesh;
}

}  // namespace scalewright
