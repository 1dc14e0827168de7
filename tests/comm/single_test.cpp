#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/mesh.h"

namespace scalewright {
namespace {

TEST(SingleGroup, EveryCollectiveIsTheIdentity) {
  const auto group = make_single_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  const at::Tensor x = at::arange(12, at::kFloat).reshape({4, 3});
  at::Tensor reduced = x.clone();
  for (const Reduce op : {Reduce::kSum, Reduce::kMax}) {
    group->all_reduce(reduced, op);
    EXPECT_TRUE(at::equal(reduced, x));
  }
  EXPECT_TRUE(at::equal(group->reduce_scatter(x, {4}), x));
  group->broadcast(reduced, 0);
  EXPECT_TRUE(at::equal(reduced, x));
  EXPECT_TRUE(at::equal(group->all_gather(x, {4}), x));
  EXPECT_TRUE(at::equal(group->all_to_all(x, {4}, {4}), x));
  group->barrier();
}

TEST(SingleGroup, RefusesWhatOneRankCannotDo) {
  const auto group = make_single_group();
  at::Tensor x = at::zeros({4, 3});
  EXPECT_THROW(group->broadcast(x, 1), BugError);
  EXPECT_THROW(group->all_to_all(x, {3}, {4}), BugError);
  EXPECT_THROW(group->all_to_all(x, {2, 2}, {2, 2}), BugError);
}

TEST(Mesh, OneRankHasGroupsOfOne) {
  const Mesh mesh = Mesh::single({});
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.rank(), 0);
  for (const Group* group : {&mesh.world(), &mesh.tp(), &mesh.ep(), &mesh.cp(), &mesh.pp(), &mesh.dp(), &mesh.data(), &mesh.stage(), &mesh.edp()}) EXPECT_EQ(group->size(), 1);
  const Mesh copy = mesh;   // a value: the groups are shared
  EXPECT_EQ(&copy.tp(), &mesh.tp());
}

TEST(Mesh, RefusesMoreRanksThanThereAreNamingTheDegree) {
  const auto refusal = [](const Degrees& degrees) -> std::string {
    try {
      Mesh::single(degrees);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal({.tp = 2}).find("parallel.tp is 2"), std::string::npos);
  EXPECT_NE(refusal({.ep = 4}).find("parallel.ep is 4"), std::string::npos);
  EXPECT_NE(refusal({.cp = 2}).find("parallel.cp"), std::string::npos);
  EXPECT_NE(refusal({.pp = 0}).find("parallel.pp is 0"), std::string::npos);
  EXPECT_NE(refusal({.dp = 8}).find("parallel.dp is 8"), std::string::npos);
  EXPECT_NE(refusal({.sp = true}).find("parallel.tp is 1"), std::string::npos);
}

}  // namespace
}  // namespace scalewright
