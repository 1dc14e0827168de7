// Which of how many processes this is, as torchrun, Slurm or `scalewright launch` tell it.
#pragma once
#include <string>

namespace scalewright {

struct World {
  int rank = 0, size = 1, local_rank = 0;
  std::string address = "127.0.0.1";   // of rank 0
  int port = 0;
  bool store_is_served = false;        // the launcher (torchrun's agent) serves the store already
  std::string prefix;                  // separates a restarted job from the one before
  int meeting_seconds = 300;           // how long the others may take to come; SCALEWRIGHT_MEETING_SECONDS
  bool launched() const { return size > 1; }
};

/// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun, launch), else from SLURM_PROCID, SLURM_NTASKS,
/// SLURM_LOCALID, and SLURM_LAUNCH_NODE_IPADDR (or MASTER_ADDR) with a port made from SLURM_JOB_ID (srun with several tasks); else one
/// process. Throws UserError for variables that contradict each other or are not numbers.
World world_from_environment();

}  // namespace scalewright
