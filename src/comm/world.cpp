#include "comm/world.h"

#include <cstdlib>
#include <optional>

#include "base/error.h"

namespace scalewright {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  return text && *text ? std::optional<std::string>(text) : std::nullopt;
}

int number(const char* name, int low, int high) {
  const std::string text = variable(name).value_or("");
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < low || value > high)
    throw UserError(fmt::format("environment variable {} is '{}'; expected a number from {} to {}\nhint: torchrun, srun and `scalewright launch` set it", name,
                                text, low, high));
  return static_cast<int>(value);
}

World from_torchrun() {
  World world;
  world.size = number("WORLD_SIZE", 1, 1 << 20);
  if (world.size == 1) return world;
  world.rank = number("RANK", 0, world.size - 1);
  world.local_rank = variable("LOCAL_RANK") ? number("LOCAL_RANK", 0, 1 << 16) : world.rank;
  world.address = variable("MASTER_ADDR").value_or("127.0.0.1");
  world.port = number("MASTER_PORT", 1, 65535);
  world.store_is_served = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  world.prefix = "scalewright/" + variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return world;
}

World from_slurm() {
  constexpr int kFirstPort = 20000, kPorts = 20000;
  World world;
  world.size = number("SLURM_NTASKS", 1, 1 << 20);
  if (world.size == 1) return world;
  world.rank = number("SLURM_PROCID", 0, world.size - 1);
  world.local_rank = variable("SLURM_LOCALID") ? number("SLURM_LOCALID", 0, 1 << 16) : world.rank;
  const auto address = variable("MASTER_ADDR") ? variable("MASTER_ADDR") : variable("SLURM_LAUNCH_NODE_IPADDR");
  if (!address) throw UserError("neither MASTER_ADDR nor SLURM_LAUNCH_NODE_IPADDR is set\nhint: export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)");
  world.address = *address;
  world.port = variable("MASTER_PORT") ? number("MASTER_PORT", 1, 65535) : kFirstPort + number("SLURM_JOB_ID", 0, 2000000000) % kPorts;
  world.prefix = "scalewright/" + variable("SLURM_RESTART_COUNT").value_or("0");
  return world;
}

}  // namespace

World world_from_environment() {
  World world;
  if (variable("WORLD_SIZE")) world = from_torchrun();
  else if (variable("SLURM_PROCID") && variable("SLURM_STEP_ID") && variable("SLURM_NTASKS")) world = from_slurm();
  if (variable("SCALEWRIGHT_MEETING_SECONDS")) world.meeting_seconds = number("SCALEWRIGHT_MEETING_SECONDS", 1, 86400);
  return world;
}

}  // namespace scalewright
