// Named places where a test can make the program fail, by the environment variable SCALEWRIGHT_FAILPOINTS, for example
// "store.rename=kill@3;recover.ptq.done=kill": kill sends SIGKILL to this process, freeze SIGSTOP, stop exits with 75 after the usual saving
// (as SIGTERM would), error throws DiskError; @N: at the N-th visit (default 1).
#pragma once
#include <string_view>

namespace scalewright {

/// Visits the place `name`; does nothing unless the environment names it.
void failpoint(std::string_view name);

}  // namespace scalewright
