#include "base/failpoint.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"

namespace scalewright {
namespace {

class Failpoint : public testing::Test {
 protected:
  void set(const char* value) { setenv("SCALEWRIGHT_FAILPOINTS", value, 1); }
  void TearDown() override {
    unsetenv("SCALEWRIGHT_FAILPOINTS");
    failpoint("none");   // forgets the counts
  }
};

TEST_F(Failpoint, DoesNothingUnlessNamed) {
  failpoint("a.b");
  set("a.c=error");
  failpoint("a.b");
}

TEST_F(Failpoint, FailsAtTheNthVisitOnly) {
  set("x=error@3;y=error");
  failpoint("x");
  failpoint("x");
  EXPECT_THROW(failpoint("x"), DiskError);
  failpoint("x");
  EXPECT_THROW(failpoint("y"), DiskError);
  failpoint("y");
}

TEST_F(Failpoint, KillAndStopSendSignals) {
  EXPECT_EXIT({ set("p=kill@2"); failpoint("p"); failpoint("p"); }, testing::KilledBySignal(SIGKILL), "failpoint p: kill");
  EXPECT_EXIT({ set("p=stop"); failpoint("p"); }, testing::KilledBySignal(SIGTERM), "failpoint p: stop");
}

TEST_F(Failpoint, RefusesAMalformedVariable) {
  for (const char* text : {"x", "x=", "x=explode", "x=kill@0", "x=kill@", "x=kill@2x", "x=kill@-1"}) {
    set(text);
    EXPECT_THROW(failpoint("other"), UserError) << text;
  }
}

}  // namespace
}  // namespace scalewright
