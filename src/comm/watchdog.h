// Notices a rank that died, was stopped or failed, long before a collective would time out, and ends all others with its name.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "comm/world.h"

namespace scalewright {

/// A thread on every rank. All ranks talk to rank 0 over one TCP connection each: signs of life with the operation they are in, twice a
/// second, both ways. Rank 0 sees a closed connection at once and silence after `silence`, and tells everybody; rank 0 itself is watched
/// by all. Rank 0 also says who has not come yet, and ends all after world.meeting_seconds. A rank that must end because of another prints what is known and leaves with exit code 4.
class Watchdog {
 public:
  /// `port` of rank 0's listener: open_listener() there, told to the others by the rendezvous.
  struct Listener {
    int descriptor = -1;
    int port = 0;
  };
  static Listener open_listener();

  Watchdog(const World& world, Listener listener, std::chrono::seconds silence);
  /// Says goodbye (or, while an exception leaves the program, that this rank failed) and ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  /// Says goodbye now: what follows, an exception too, concerns nobody else.
  void dismiss();

  /// What this rank is doing now, for the others' messages. `operation` must live for ever.
  void doing(const char* operation, const char* group);
  /// After a collective failed: gives the watchdog `limit` to name the rank that caused it (it then ends this process).
  void await_cause(std::chrono::milliseconds limit) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scalewright
