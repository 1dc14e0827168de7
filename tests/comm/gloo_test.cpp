// Ranks as threads of one process, each with its own connection to the store.
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "comm/exact_sums.h"
#include "comm/gloo.h"
#include "comm/mesh.h"
#include "comm/tensor_map.h"
#include "ops/tensor_memory.h"

namespace scalewright {
namespace {

int next_port() {
  static int port = 20000 + getpid() % 20000;
  return port++;
}

/// Runs body(group) on `ranks` ranks and rethrows what went wrong.
void on_ranks(int ranks, const std::function<void(const Group&)>& body) {
  const int port = next_port();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        World world;
        world.rank = r;
        world.size = ranks;
        world.port = port;
        const Rendezvous meeting(world, std::chrono::seconds(20));
        const auto group = meeting.group("test", all);
        body(*group);
        group->barrier();
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

at::Tensor of_rank(int rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return (at::sin(at::arange(n, at::kDouble) * 0.37 + rank) * 8).to(dtype).view(sizes);
}

TEST(Gloo, SumsInRankOrderAndInFloat32) {
  for (const int64_t n : {3, 5000})   // one message, two rounds
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble, at::kLong}) {
      const at::ScalarType wire = dtype == at::kBFloat16 ? at::kFloat : dtype;
      at::Tensor want = of_rank(0, {n}, dtype).to(wire), largest = want;
      for (int r = 1; r < 3; ++r) {
        want = want + of_rank(r, {n}, dtype).to(wire);
        largest = at::maximum(largest, of_rank(r, {n}, dtype).to(wire));
      }
      on_ranks(3, [&](const Group& group) {
        at::Tensor x = of_rank(group.rank(), {n}, dtype), y = x.clone();
        group.all_reduce(x, Reduce::kSum);
        group.all_reduce(y, Reduce::kMax);
        if (!at::equal(x, want.to(dtype)) || !at::equal(y, largest.to(dtype))) throw std::runtime_error("another sum or maximum");
      });
    }
}

TEST(Gloo, ExactSumsOverRanks) {
  on_ranks(3, [](const Group& group) {
    std::vector<ExactSum> own(2);
    for (int i = 0; i < 5; ++i) own[0] += std::ldexp(0.1 * (group.rank() + 1), 40 * i - 90);
    if (group.rank() == 1) own[1] += 7.0;   // the others have no part of it
    ExactSum want;
    for (int r = 2; r >= 0; --r)
      for (int i = 0; i < 5; ++i) want += std::ldexp(0.1 * (r + 1), 40 * i - 90);
    const std::vector<ExactSum> all = add_up(group, own);
    SW_CHECK(double{all[0]} == double{want} && double{all[1]} == 7.0, "sums {} and {}", double{all[0]}, double{all[1]});
  });
}

TEST(Gloo, NanReachesEverybody) {
  on_ranks(2, [&](const Group& group) {
    at::Tensor x = at::full({2}, group.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f, at::kFloat);
    group.all_reduce(x, Reduce::kMax);
    if (!x.isnan().all().item<bool>()) throw std::runtime_error("NaN was lost");
  });
}

TEST(Gloo, UnevenRowsGatherScatterAndExchange) {
  const std::vector<int64_t> rows = {2, 0, 3};
  on_ranks(3, [&](const Group& group) {
    const int rank = group.rank();
    std::vector<at::Tensor> parts;
    for (int r = 0; r < 3; ++r) parts.push_back(of_rank(r, {rows[r], 4}, at::kFloat));
    if (!at::equal(group.all_gather(parts[rank], rows), at::cat(parts))) throw std::runtime_error("all_gather");
    at::Tensor sum = of_rank(0, {5, 2}, at::kDouble) + of_rank(1, {5, 2}, at::kDouble) + of_rank(2, {5, 2}, at::kDouble);
    const int64_t begin = rank == 0 ? 0 : 2;
    if (!at::equal(group.reduce_scatter(of_rank(rank, {5, 2}, at::kDouble), rows), sum.narrow(0, begin, rows[rank]))) throw std::runtime_error("reduce_scatter");
    // Rank r sends (r + p) % 3 rows to p, all equal to 10 r + p.
    std::vector<int64_t> send, receive;
    std::vector<at::Tensor> out, want;
    for (int p = 0; p < 3; ++p) {
      send.push_back((rank + p) % 3);
      receive.push_back((p + rank) % 3);
      out.push_back(at::full({send.back(), 2}, 10 * rank + p, at::kBFloat16));
      want.push_back(at::full({receive.back(), 2}, 10 * p + rank, at::kBFloat16));
    }
    if (!at::equal(group.all_to_all(at::cat(out), send, receive), at::cat(want))) throw std::runtime_error("all_to_all");
  });
}

TEST(Gloo, PeersAndMaps) {
  on_ranks(2, [&](const Group& group) {
    at::Tensor x = of_rank(group.rank(), {3, 5}, at::kBFloat16), y = at::empty({3, 5}, at::kBFloat16);
    group.send(x, 1 - group.rank());   // both at once
    group.receive(y, 1 - group.rank());
    if (!at::equal(y, of_rank(1 - group.rank(), {3, 5}, at::kBFloat16))) throw std::runtime_error("send");
    group.broadcast(x, 1);
    if (!at::equal(x, of_rank(1, {3, 5}, at::kBFloat16))) throw std::runtime_error("broadcast");
    const auto all = gather_on_first(group, {{fmt::format("of {}", group.rank()), at::full({2}, group.rank(), at::kLong)}, {"same", at::empty({0})}});
    if (group.rank() == 0 && (all.size() != 3 || all.at("of 1").sum().item<int64_t>() != 2)) throw std::runtime_error("gather_on_first");
  });
}

TEST(Gloo, ManyMessagesAreNotKept) {
  count_tensor_memory();
  reset_peak_tensor_bytes();
  on_ranks(2, [](const Group& group) {
    // 60 messages of 4 MB: kept, they would be 240 MB.
    for (int i = 0; i < 60; ++i) {
      at::Tensor x = at::full({1 << 20}, static_cast<float>(i), at::kFloat);
      if (group.rank() == 0) group.send(x, 1);
      else group.receive(x, 0);
      SW_CHECK(x[7].item<float>() == static_cast<float>(i), "message {} holds {}", i, x[7].item<float>());
    }
    if (group.rank() == 0) SW_CHECK(peak_tensor_bytes() < 100'000'000, "{} bytes held", peak_tensor_bytes());
  });
}

TEST(World, ReadsWhatLaunchersSet) {
  const auto with = [](const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID",
                             "SLURM_JOB_ID", "SLURM_LAUNCH_NODE_IPADDR", "TORCHELASTIC_USE_AGENT_STORE"})
      unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return world_from_environment();
  };
  EXPECT_EQ(with({}).size, 1);
  const World torchrun = with({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(torchrun.rank, 3);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_TRUE(torchrun.store_is_served);
  const World slurm = with({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "1234"},
                            {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}});
  EXPECT_EQ(slurm.rank, 5);
  EXPECT_EQ(slurm.size, 16);
  EXPECT_EQ(slurm.address, "10.0.0.1");
  EXPECT_EQ(slurm.port, 21234);
  EXPECT_THROW(with({{"RANK", "8"}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", "29500"}}), UserError);
  EXPECT_THROW(with({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}}), UserError);
  with({});
}

}  // namespace
}  // namespace scalewright
